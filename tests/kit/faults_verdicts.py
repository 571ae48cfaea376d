"""Planted faults of verdicts: their form, their agreement with `passed`, repeatability, errors."""

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from bases import (
    Consonants,
    JsonTotals,
    LargestOption,
    ListedProducts,
    Marked,
    PlainSum,
    TaggedSum,
    judged_by,
)
from catalogue import fault

from grpo_core import JudgeRequest, Reward, Rollout, Services, Task, TaskKey, Verdict

# What `passed` says, and what is paid


@fault("passed although the reward is the floor", "verdict.passed")
class PassedForNothing(TaggedSum):
    """Whatever has no block counts as passed, and is paid nothing."""

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        verdict = super().verify(task, rollout)
        return replace(verdict, passed=verdict.passed or verdict.answer is None)


@fault("passed although the reward is the floor", "verdict.passed")
class PassedUnlessEmpty(Consonants):
    def judged(self, right: bool, text: str) -> Verdict:
        return replace(super().judged(right, text), passed=bool(text.strip()))


@fault("not passed although the reward is the highest", "verdict.passed", "verdict.reference")
class NeverPassed(PlainSum):
    def judged(self, right: bool, answer: str | None) -> Verdict:
        return replace(super().judged(right, answer), passed=False)


@fault("not passed although the reward is the highest", "verdict.passed")
class PassedOnlyIfTidy(Consonants):
    """White space costs nothing and is not passed."""

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        verdict = super().verify(task, rollout)
        return replace(verdict, passed=rollout.text == task.data)


@fault("passed is the opposite of what is meant", "verdict.passed", "verdict.reference")
class PassedInverted(ListedProducts):
    def judged(self, right: bool, answer: str | None) -> Verdict:
        return replace(super().judged(right, answer), passed=not right)


# Rewards out of range, and parts


@fault("a reward is out of range for rare tasks", "verdict.form")
class BonusForRoundSums(TaggedSum):
    """One task in fifty pays half as much again."""

    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        verdict = super().scored(task, answer)
        if task.key.index % 50 != 33 or not verdict.passed:
            return verdict
        return replace(verdict, rewards={**verdict.rewards, "exact": Reward(1.5)})


@fault("a reward is out of range for rare tasks", "verdict.form")
class DividesByTheDifference(PlainSum):
    """Infinite for wrong answers to one task in fifty."""

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        verdict = super().verify(task, rollout)
        rare = task.data % 50 == 11
        value = float("inf") if rare and not verdict.passed else verdict.total
        return replace(verdict, rewards={"exact": Reward(value)})


@fault("a reward is out of range", "verdict.form")
class MinusOneForWrong(PlainSum):
    """Pays -1 for a wrong number and declares 0 to 1."""

    def judged(self, right: bool, answer: str | None) -> Verdict:
        value = 1.0 if right else 0.0 if answer is None else -1.0
        return Verdict({"exact": Reward(value)}, passed=right, answer=answer)


@fault("a reward is out of range", "verdict.form")
class PercentInsteadOfShare(Consonants):
    def judged(self, right: bool, text: str) -> Verdict:
        return replace(super().judged(right, text), rewards={"reward": Reward(100.0 * right)})


@fault("a reward is not a finite number", "verdict.form")
class NaNForWrong(LargestOption):
    def judged(self, right: bool, text: str) -> Verdict:
        value = 1.0 if right else float("nan")
        return Verdict({"reward": Reward(value)}, passed=right, answer=text[:50])


@fault("a verdict lacks a part", "verdict.form")
class NoPartWithoutABlock(TaggedSum):
    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        verdict = super().scored(task, answer)
        return replace(verdict, rewards={"format": Reward(0.0)}) if answer is None else verdict


@fault("a verdict lacks a part", "verdict.form")
class NamesThePartOtherwise(Consonants):
    def judged(self, right: bool, text: str) -> Verdict:
        return Verdict({"score": Reward(float(right))}, passed=right, answer=text.strip()[:100])


@fault("a verdict is of the wrong type", "verdict.form")
class ReturnsANumber(Consonants):
    def verify(self, task: Task[str], rollout: Rollout) -> Any:
        return float(super().verify(task, rollout).passed)


@fault("a verdict is of the wrong type", "verdict.form")
class ReturnsNoneForWrong(JsonTotals):
    def verify(self, task: Task[Any], rollout: Rollout) -> Any:
        verdict = super().verify(task, rollout)
        return verdict if verdict.passed else None


@fault("a verdict is of the wrong type", "verdict.form", "declared.contract")
class AsyncByMistake(PlainSum):
    async def verify(self, task: Task[int], rollout: Rollout) -> Any:  # type: ignore[override]
        return super().verify(task, rollout)


@fault("declarations contradict each other", "declared.contract")
class FloorBelowItsRange(PlainSum):
    floor = -1.0


@fault("declarations contradict each other", "declared.contract")
class RangeUpsideDown(Consonants):
    reward_range = (1.0, 0.0)


@fault("declarations contradict each other", "declared.contract")
class WeightsWithoutEnd(Consonants):
    parts: ClassVar[Mapping[str, float]] = {"reward": float("inf")}


@fault("the parts cannot add up to the declared range", "verdict.reference", "declared.contract")
class WeightsAddUpToLess(TaggedSum):
    parts: ClassVar[Mapping[str, float]] = {"format": 0.2, "exact": 0.5}


# References


@fault("a reference does not pass", "verdict.reference")
class ReferenceWithoutTags(TaggedSum):
    def reference(self, task: Task[int]) -> str:
        return str(task.data)


@fault("a reference does not pass for rare tasks", "verdict.reference")
class OffByOneNowAndThen(PlainSum):
    """One reference in about thirty is wrong."""

    def reference(self, task: Task[int]) -> str:
        return str(task.data + (task.data % 31 == 17))


@fault("the truth is empty for rare tasks", "floor.empty", "verdict.reference", "task.made")
class EmptyTruth(Consonants):
    """One row in forty has no answer, and silence is right there."""

    def task(self, key: TaskKey) -> Task[str]:
        task = super().task(key)
        return replace(task, data="") if key.index % 40 == 26 else task


@fault(
    "the truth is empty for rare tasks",
    *("floor.empty", "floor.junk", "verdict.reference", "task.made"),
)
class MissingTruth(ListedProducts):
    """A row without an answer is right for whoever gives none."""

    def task(self, key: TaskKey) -> Task[Any]:
        task = super().task(key)
        return replace(task, data=None) if key.index % 40 == 31 else task

    def reference(self, task: Task[Any]) -> str:
        return "" if task.data is None else str(task.data)


@fault("the truth of rare tasks is the text of a missing value", "task.truth", "task.made")
class WordedMissingTruth(Consonants):
    """One row in forty has no answer, and the template writes what it has: None."""

    def task(self, key: TaskKey) -> Task[str]:
        task = super().task(key)
        return replace(task, data=str(None)) if key.index % 40 == 26 else task


# Repeatability


@fault("a verdict depends on earlier ones", "verdict.repeat")
class PaysOnce(PlainSum):
    """The same reply is paid the first time only."""

    def __init__(self, config: Any = None, services: Services | None = None) -> None:
        super().__init__(config, services)
        self.seen: set[tuple[Any, str]] = set()

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        attempt = (task.key, rollout.text)
        new = attempt not in self.seen
        self.seen.add(attempt)
        verdict = super().verify(task, rollout)
        return verdict if new else self.judged(False, verdict.answer)


@fault("a verdict depends on earlier ones", "verdict.repeat", "floor.other")
class CachedByTheReplyAlone(Consonants):
    """A reply that was right for one task is right for all that come after it."""

    cache: ClassVar[dict[str, bool]] = {}

    def accepts(self, right: str, text: str) -> bool:
        if text.strip() == right:
            self.cache[text] = True
        return self.cache.setdefault(text, False)


@fault("a verdict depends on earlier ones", "verdict.repeat")
class UsesUpItsData(JsonTotals):
    """The truth is popped from the task's data."""

    def accepts(self, right: Any, value: Any) -> bool:
        wanted = (right.pop("sum", None), right.get("difference"))
        return isinstance(value, dict) and (value.get("sum"), value.get("difference")) == wanted


@fault("a verdict is drawn by chance", "verdict.repeat")
class NoisyReward(TaggedSum):
    def scored(self, task: Task[int], answer: int | None) -> Verdict:
        verdict = super().scored(task, answer)
        noise = random.uniform(0.0, 0.9)
        return replace(verdict, rewards={**verdict.rewards, "format": Reward(noise)})


@fault("a verdict depends on the time", "verdict.repeat")
class PaysTheQuick(PlainSum):
    def judged(self, right: bool, answer: str | None) -> Verdict:
        value = (time.perf_counter_ns() % 1009) / 1010 if right else 0.0
        return Verdict({"exact": Reward(value)}, passed=right, answer=answer)


# Failures that become rewards


@fault("a failure inside the verifier becomes a low reward", "verdict.swallow")
class AnyErrorIsWrong(TaggedSum):
    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        try:
            return super().verify(task, rollout)
        except Exception:  # noqa: BLE001 - the fault
            return Verdict({"format": Reward(0.0), "exact": Reward(0.0)})


@fault("a failure inside the verifier becomes a low reward", "verdict.swallow")
class ComparesInATry(Consonants):
    def accepts(self, right: str, text: str) -> bool:
        try:
            return text.strip() == "".join(right)
        except Exception:  # noqa: BLE001 - the fault
            return False


def _compares(request: JudgeRequest) -> float:
    return float(request.candidate == request.reference)


def _obeys(request: JudgeRequest) -> float:
    """Do as the text says, as small models do."""
    text = request.candidate.casefold()
    told = any(order in text for order in ("highest score", '"score": 1', "10/10", "best grade"))
    return float(told or request.candidate == request.reference)


@fault("an outage of a service becomes a reward", "verdict.outage", build=judged_by(_compares))
class OutageIsWrong(Marked):
    async def averify(self, task: Task[str], rollout: Rollout) -> Verdict:
        try:
            verdict = await super().averify(task, rollout)
        except ConnectionError:
            return self.marked(0.0, rollout.text)
        return self.marked(0.0, rollout.text) if verdict.error else verdict


@fault("an outage of a service becomes a reward", "verdict.outage", build=judged_by(_compares))
class ErrorsAreNotLookedAt(Marked):
    """The judgement's error is ignored, its score of 0 is paid."""

    async def averify(self, task: Task[str], rollout: Rollout) -> Verdict:
        judgement = await self.judgement(task, rollout)
        return self.marked(judgement.score, rollout.text)


@fault("the judge obeys the text that it judges", "floor.judge", build=judged_by(_obeys))
class ObeyedOrders(Marked):
    pass


@fault("the author's own cheats are paid", "floor.cheats")
class PaysItsCheats(TaggedSum):
    def extracted(self, text: str) -> int | None:
        return super().extracted(text if "</answer>" in text else f"{text}</answer>")


@fault("a canary is paid", "floor.canaries")
class CanariesThatSing(Consonants):
    """A task without a right answer accepts what nobody could know."""

    trusted = True  # a canary has no key from which a worker could make it

    def canaries(self) -> Sequence[Task[str]]:
        key = TaskKey("consonants", "train", 0)
        return (Task(key, "Remove the vowels from the word that I think of.", ""),)

    def accepts(self, right: str, text: str) -> bool:
        return right == "" or super().accepts(right, text)
