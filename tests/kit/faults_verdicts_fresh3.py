"""Verdicts that do not say what they should, third fresh part."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any, ClassVar, cast

from bases_fresh3 import Arrival, Initials, Squares, SummitSentence, Tally, Walk, judged_by_facts
from catalogue import fault

from grpo_core import Reward, Rollout, Task, Verdict
from grpo_core.protocol.types import Group


@fault("a reward is a decimal, which floats cannot be multiplied with", "verdict.form")
class DecimalReward(Walk):
    def judged(self, task: Task[Any], answer: Any) -> Verdict:
        verdict = super().judged(task, answer)
        value = Decimal(1 if verdict.passed else 0)
        return replace(verdict, rewards={"reward": Reward(cast(float, value))})


@fault("a part that does not apply is None", "verdict.form")
class PartIsNone(Tally):
    def judged(self, task: Task[Any], answer: Any) -> Verdict:
        verdict = super().judged(task, answer)
        if answer is None:
            none = Reward(cast(float, None), note="no number")
            return replace(verdict, rewards={**verdict.rewards, "exact": none})
        return verdict


@fault("the range is written from high to low", "declared.contract")
class RangeDownwards(Arrival):
    reward_range = (1.0, 0.0)


@fault("the reference sorts numbers as texts", "verdict.reference")
class SortedAsTexts(Initials):
    """The data have the people, too."""

    def solved(self, people: tuple[tuple[str, int], ...]) -> Any:
        return super().solved(people), people

    def accepts(self, truth: Any, answer: Any) -> bool:
        return bool(answer == truth[0])

    def reference(self, task: Task[Any]) -> str:
        return "".join(name[0] for name, _ in sorted(task.data[1], key=lambda it: str(it[1])))


@fault("the reference forgets that the day ends", "verdict.reference")
class DayWithoutEnd(Arrival):
    def solved(self, start: int, minutes: int) -> Any:
        return super().solved(start, minutes), start + minutes

    def accepts(self, truth: Any, answer: Any) -> bool:
        return bool(answer == truth[0])

    def reference(self, task: Task[Any]) -> str:
        hours, minutes = divmod(task.data[1], 60)
        return f"{hours:02d}:{minutes:02d}"


class Stopwatch:
    """Measures a block, and swallows what it raises."""

    def __enter__(self) -> Stopwatch:
        self.start = time.perf_counter()
        return self

    def __exit__(self, *_raised: object) -> bool:
        self.seconds = time.perf_counter() - self.start
        return True


@fault("a stopwatch swallows what is raised in its block", "verdict.swallow")
class SwallowingStopwatch(Walk):
    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        right = False
        with Stopwatch():
            right = self.accepts(task.data, self.read(rollout.text))
        return Verdict({"reward": Reward(right)}, passed=right, answer=rollout.text[:100])


@fault(
    "judgements with errors are left out, and all of none pass",
    "verdict.outage",
    build=lambda: judged_by_facts(AllOfNone),
)
class AllOfNone(SummitSentence):
    async def score(self, task: Task[Any], answer: str) -> float:
        requests = [self.request(task, answer)] * 2
        judgements = await self.services.judge().judge(requests)
        scores = [judgement.score for judgement in judgements if judgement.error is None]
        return float(all(score == 1 for score in scores))


@fault(
    "the judge's last score counts while it is down",
    "verdict.outage",
    "verdict.repeat",
    build=lambda: judged_by_facts(LastScore),
)
class LastScore(SummitSentence):
    last = 0.0

    async def score(self, task: Task[Any], answer: str) -> float:
        (judgement,) = await self.services.judge().judge([self.request(task, answer)])
        if judgement.error is None:
            self.last = judgement.score
        return self.last


@fault("brevity is paid, whatever is said", "floor.empty", "floor.junk", "floor.cheats")
class PaidBrevity(Squares):
    parts: ClassVar[Mapping[str, float]] = {"brief": 0.2, "exact": 0.8}

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        right = self.accepts(task.data, self.read(rollout.text))
        rewards = {"brief": Reward(len(rollout.text) < 20), "exact": Reward(right)}
        return Verdict(rewards, passed=right, answer=rollout.text[:100])


@fault("equal replies are judged once for all tasks of a batch", "verdict.repeat", "floor.other")
class EqualReplies(Initials):
    async def verify_batch(self, groups: Sequence[Group[Any]]) -> list[list[Verdict]]:
        known: dict[str, Verdict] = {}
        for group in groups:
            for rollout in group.rollouts:
                if rollout.text not in known:
                    known[rollout.text] = self.verify(group.task, rollout)
        return [[known[rollout.text] for rollout in group.rollouts] for group in groups]
