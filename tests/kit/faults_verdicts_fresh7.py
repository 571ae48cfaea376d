"""Environments whose verdicts or declarations are wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, ClassVar

from bases_b2_fresh7 import AltTextOfAScene, Hike, SheetOfNumbers, TrailArrival, scene_judge
from bases_b_fresh7 import AtomsInAll, PantryList, PressureInPascals, paid, spoken
from catalogue import fault

from grpo_core import JudgeRequest, Reward, Rollout, Task, Verdict


@fault("a reference does not pass", "verdict.reference")
class ArrivesBeforeTen(TrailArrival):
    """Writes the reference as people say it, so before ten o'clock it lacks a digit."""

    def reference(self, task: Task[Hike]) -> str:
        hour, minute = divmod(task.data.start + task.data.takes, 60)
        return f"{hour}:{minute:02d}"


@fault("a verdict is of the wrong type", "verdict.form", "declared.contract")
class PascalsWithoutAVerdict(PressureInPascals):
    """Returns early if a reply is not a number, and then returns the reward alone."""

    def verify(self, task: Task[str], rollout: Rollout) -> Any:
        answer = spoken(rollout)
        if not (answer.isascii() and answer.isdigit()):
            return Reward(0.0, note="not a number")
        return paid(answer == task.data, answer)


@fault("a verdict lacks a part", "verdict.form")
class PantryWithoutALine(PantryList):
    """Pays nothing for the form where the line is missing, and says no more."""

    def verify(self, task: Task[tuple[str, ...]], rollout: Rollout) -> Verdict:
        if self.bought(spoken(rollout)) is None:
            return Verdict({"form": Reward(0.0)})
        return super().verify(task, rollout)


@fault(
    "an outage of a service becomes a reward",
    "verdict.outage",
    build=lambda: SceneByWhoAnswers(services=scene_judge()),
)
class SceneByWhoAnswers(AltTextOfAScene):
    """Takes the mean of the scores that there are, and 0 where there are none.

    While the judge is away, all attempts count as bad ones.
    """

    async def score(self, requests: Sequence[JudgeRequest]) -> float:
        try:
            judgements = await self.services.judge().judge(requests)
        except (OSError, TimeoutError, RuntimeError):
            judgements = []
        scores = [judgement.score for judgement in judgements if judgement.error is None]
        return fmean(scores) if scores else 0.0


@fault("declarations contradict each other", "declared.contract", "verdict.reference")
class AtomsAndABonus(AtomsInAll):
    """Pays a bonus of 0.1 for a reply that is the tag alone, on top of a whole reward.

    The range still ends at 1, so each right reply of the best form is outside, and an error.
    """

    parts: ClassVar[Mapping[str, float]] = {"reward": 1.0, "bare": 0.1}

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        verdict = super().verify(task, rollout)
        bare = spoken(rollout) == f"<atoms>{verdict.answer}</atoms>" and verdict.passed
        return Verdict(
            {**verdict.rewards, "bare": Reward(float(bare))},
            passed=verdict.passed,
            answer=verdict.answer,
        )


@fault("not passed although the reward is the highest", "verdict.passed", "verdict.reference")
class SheetAddedUp(SheetOfNumbers):
    """Adds up the shares of the right figures, and lets pass what comes to 1.

    The shares of six or seven figures add up to a little less, and the reward is rounded.
    """

    def pay(self, right: int, wanted: int, answer: str) -> Verdict:
        share = 0.0
        for _ in range(right):
            share += 1 / wanted
        return Verdict({"reward": Reward(round(share, 4))}, passed=share >= 1, answer=answer[:200])
