"""Verdicts that do not say what they should, fourth fresh part."""

from __future__ import annotations

import math
import random
import time
from typing import Any

from bases_fresh4 import SPACE, Coins, Finish, Puzzle, Seat
from bases_words_fresh4 import Opening, Stations, Ticket, with_judge
from catalogue import fault

from grpo_core import JudgeRequest, Reward, Rollout, Task, TaskKey, Verdict


@fault("a reward is not a finite number", "verdict.form")
class DistanceOfNothing(Stations):
    """The largest of NaN and 0 is NaN, if NaN comes first."""

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        answer = self.read(rollout.text)
        distance = math.nan if answer is None else float(abs(answer - task.data))
        value = max(1.0 - distance, 0.0)
        return Verdict({"reward": Reward(value)}, passed=distance == 0, answer=rollout.text[:20])


class Remainders(Puzzle):
    """What is left of numbers when they are divided? Each number in its place is paid."""

    def drawn(self, rng: random.Random, level: float) -> tuple[Any, ...]:
        count = 4 + round(2 * level)
        return rng.randint(71, 99), tuple(rng.randint(1000, 99_999) for _ in range(count))

    def asked(self, by: int, numbers: tuple[int, ...]) -> str:
        told = ", ".join(map(str, numbers))
        return (
            f"What is left of each of these numbers if it is divided by {by}: {told}? Reply with "
            "the remainders only, in the same order, as in: 5, 60, 17"
        )

    def solved(self, by: int, numbers: tuple[int, ...]) -> str:
        return ", ".join(str(number % by) for number in numbers)

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        answer = self.read(rollout.text)
        said, right = answer.split(", "), task.data.split(", ")
        places = sum(one == two for one, two in zip(said, right, strict=False))
        value = places / self.most(said, right)
        return Verdict({"reward": Reward(value)}, passed=said == right, answer=answer[:100])

    def most(self, said: list[str], right: list[str]) -> int:
        """Return how many places count."""
        return max(len(said), len(right))


@fault("a reward is out of range for rare tasks", "verdict.form", "verdict.reference")
class DifferentRemainders(Remainders):
    """The places are divided by the number of different ones, which is smaller now and then."""

    def most(self, said: list[str], right: list[str]) -> int:
        return max(len(set(said)), len(set(right)))


@fault(
    "a verdict depends on earlier ones",
    "verdict.repeat",
    "verdict.process",
    "verdict.reference",
    "floor.other",
)
class KeptByIndex(Coins):
    """Solutions are kept by the number of the task, whichever split, seed or level it is of."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.solutions: dict[int, Any] = {}

    def posed(self, key: TaskKey, *content: Any) -> Task[Any]:
        task = super().posed(key, *content)
        return Task(key, task.prompt, content)

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        if task.key.index not in self.solutions:
            self.solutions[task.key.index] = self.solved(*task.data)
        answer = self.read(rollout.text)
        right = self.accepts(self.solutions[task.key.index], answer)
        return self.judged(right, answer)

    def written(self, truth: Any) -> str:
        return super().written(self.solved(*truth))


@fault("a verdict depends on the time", "verdict.repeat", "verdict.process")
class PaidForSpeed(Ticket):
    """A right answer earns less for each second since the first verdict on its task."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.began: dict[TaskKey, float] = {}

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        now = time.monotonic()
        if len(self.began) > 100:
            self.began.clear()
        waited = now - self.began.setdefault(task.key, now)
        verdict = super().verify(task, rollout)
        value = 0.5 ** (waited / 30) if verdict.passed else 0.0
        return Verdict({"reward": Reward(value)}, passed=verdict.passed, answer=verdict.answer)


@fault("a verdict is drawn by chance", "verdict.repeat")
class RoundedByChance(Finish):
    """Rewards were to be 0 or 1, so the share of right places is the chance of a 1."""

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        said, right = rollout.text.strip(SPACE).split(", "), task.data.split(", ")
        places = sum(one == two for one, two in zip(said, right, strict=False))
        share = places / max(len(said), len(right))
        paid = float(random.random() < share)
        return Verdict({"reward": Reward(paid)}, passed=said == right, answer=rollout.text[:100])


@fault(
    "an outage of a service becomes a reward",
    "verdict.outage",
    build=lambda: with_judge(ComparedInstead),
)
class ComparedInstead(Opening):
    """While the judge is down, the share of common words stands in for its score."""

    async def score(self, task: Task[Any], answer: str) -> float:
        request = JudgeRequest(answer, rubric="Do both say the same?", reference=task.data)
        for _ in range(2):
            (judgement,) = await self.services.judge().judge([request])
            if judgement.error is None:
                return judgement.score
        said, right = set(answer.lower().split()), set(task.data.lower().split())
        return len(said & right) / len(said | right)


@fault("declarations contradict each other", "declared.contract")
class FloorOfOldRange(Seat):
    """Wrong answers used to cost a point; the range was changed, and the floor was not."""

    reward_range = (0.0, 1.0)
    floor = -1.0
