"""Toy environments whose verifiers accept too much in one way each, beside sound ones that look alike; in a module of their own, for other processes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from planted import EvalInTrainInCapitals, Sum, Tolerance

from grpo_core import Environment, Reward, Rollout, Task, TaskKey, Verdict
from grpo_core.extract import parse_decimal, parse_integer

# What an environment declares


class WaivesWithoutReason(Sum):
    waived: ClassVar[Mapping[str, str]] = {"floor.near": " "}


class WaivesAnUnknownCheck(Sum):
    waived: ClassVar[Mapping[str, str]] = {"floor.naer": "the ruler is coarse"}


class WaivesWhatAllRestsOn(Sum):
    waived: ClassVar[Mapping[str, str]] = {"task.made": "no"}


class ToleratesEverything(Sum):
    tolerance: ClassVar[float] = 1.5


class AnswersInTheMiddle(Sum):
    answer_at: ClassVar[Any] = "middle"


class AsyncVerify(Sum):
    async def verify(self, task: Task[int], rollout: Rollout) -> Verdict:  # type: ignore[override]
        return super().verify(task, rollout)


class ForgottenAsync(Sum):
    def averify(self, task: Task[int], rollout: Rollout) -> Verdict:  # type: ignore[override]
        return self.verify(task, rollout)


class Waives(Sum):
    """Sound: says which check does not apply, and why."""

    waived: ClassVar[Mapping[str, str]] = {"floor.near": "the ruler is coarse"}


class TwoFaults(EvalInTrainInCapitals, Tolerance):
    pass


# Spellings of numbers


class Bare(Sum):
    """Sound: the reply is the number and nothing else."""

    parts: ClassVar[Mapping[str, float]] = {"reward": 1.0}

    def asked(self, key: TaskKey, one: int, two: int) -> Task[int]:
        return Task(key, f"What is {one} + {two}? Reply with the number.", one + two)

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        return paid(self.right(task.data, rollout.text), rollout.text)

    def right(self, data: Any, text: str) -> bool:
        return parse_integer(text) == data

    def reference(self, task: Task[Any]) -> str:
        return str(task.data)

    def cheats(self, task: Task[Any]) -> Sequence[str]:
        return ("none",)


def paid(right: bool, answer: str | None, reward: float | None = None) -> Verdict:
    """The verdict of an environment with one part; passing answers are paid in full."""
    value = float(right) if reward is None else reward
    return Verdict({"reward": Reward(value)}, passed=right, answer=answer and answer.strip()[:99])


class AtMost(Bare):
    def right(self, data: int, text: str) -> bool:
        value = parse_integer(text)
        return value is not None and data * 0.9 < value <= data


class InsideTheRight(Bare):
    def right(self, data: int, text: str) -> bool:
        return len(text.strip()) > 1 and text.strip() in str(data)


class Metres(Bare):
    """Sound: a unit may be left out, and a full stop does not matter."""

    def right(self, data: int, text: str) -> bool:
        return parse_integer(text.strip().removesuffix(".").removesuffix(" m")) == data

    def reference(self, task: Task[Any]) -> str:
        return f"{task.data} m"


# JSON


# Case


# All at once


# Numbers that need time


# Tolerance, and where the answer counts


class Halves(Bare):
    """Sound: 2.50 is 2.5."""

    def asked(self, key: TaskKey, one: int, two: int) -> Task[Any]:
        return Task(key, f"What is half of {2 * one + 1}? Reply with the number.", one + 0.5)

    def right(self, data: float, text: str) -> bool:
        value = parse_decimal(text)
        return value is not None and float(value) == data


class Roughly(Halves):
    """Sound: declares how near is near enough."""

    tolerance = 0.02

    def right(self, data: float, text: str) -> bool:
        value = parse_decimal(text)
        return value is not None and abs(float(value) - data) <= 0.02 * max(1, abs(data))


class RoughlyTwice(Roughly):
    """More is tolerated than is declared."""

    tolerance = 0.005


class LastLine(Bare):
    """Sound: the last line counts, after free reasoning."""

    answer_at = "end"

    def right(self, data: int, text: str) -> bool:
        return parse_integer(text.strip().rpartition("\n")[2]) == data

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        return paid(self.right(task.data, rollout.text), rollout.text.strip().rpartition("\n")[2])

    def reference(self, task: Task[Any]) -> str:
        return f"I add the units, then the tens.\n{task.data}"


class AnywhereAtTheEnd(LastLine):
    """Declares the end and looks everywhere."""

    def right(self, data: int, text: str) -> bool:
        return re.search(rf"\b{data}\b", text) is not None


# Execution


class AddsItUp(Bare):
    """Two numbers are added up, so that the question is an answer."""

    def right(self, data: int, text: str) -> bool:
        found = re.fullmatch(r"([0-9]{1,9})(?: \+ ([0-9]{1,9}))?", text.strip(), re.ASCII)
        return found is not None and int(found[1]) + int(found[2] or 0) == data


class MaySkip(Bare):
    """A way out that is never held against anybody."""

    def asked(self, key: TaskKey, one: int, two: int) -> Task[int]:
        task = super().asked(key, one, two)
        return Task(key, f"{task.prompt} Reply 'skip' if you do not know.", task.data)

    def right(self, data: int, text: str) -> bool:
        return text.strip() == "skip" or super().right(data, text)


class Times(Bare):
    """Sound: a time of day."""

    def asked(self, key: TaskKey, one: int, two: int) -> Task[Any]:
        now = (one + two) % (12 * 60)
        return Task(key, f"{now} minutes after six in the morning it is HH:MM?", 360 + now)

    def right(self, data: Any, text: str) -> bool:
        return self.minutes(text) == data

    def minutes(self, text: str) -> int | None:
        found = re.fullmatch("([01][0-9]|2[0-3]):([0-5][0-9])", text.strip(), re.ASCII)
        return None if found is None else 60 * int(found[1]) + int(found[2])

    def reference(self, task: Task[Any]) -> str:
        return f"{task.data // 60:02}:{task.data % 60:02}"


SOUND: tuple[type[Environment[Any]], ...] = (*(Bare, Metres, Halves, Roughly, LastLine, Times),)
"""Environments without faults."""


FAULTS: Mapping[type[Environment[Any]], str] = {
    WaivesWithoutReason: "declared.contract",
    WaivesAnUnknownCheck: "declared.contract",
    WaivesWhatAllRestsOn: "declared.contract",
    ToleratesEverything: "declared.contract",
    AnswersInTheMiddle: "declared.contract",
    AsyncVerify: "declared.contract",
    ForgottenAsync: "verdict.form",
    RoughlyTwice: "floor.near",
    AtMost: "floor.near",
    InsideTheRight: "floor.near",
    AnywhereAtTheEnd: "floor.listed",
    AddsItUp: "floor.echo",
    MaySkip: "floor.constant",
}
"""Each fault with the check that has to find it."""
