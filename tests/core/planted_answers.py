"""Toy environments that declare too much or accept too much in one way each; in a module of their own, for other processes."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from planted import EvalInTrainInCapitals, Sum, Tolerance, exactly

from grpo_core import Environment, Rollout, Task, TaskKey, Verdict
from grpo_core.extract import parse_integer

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


class TwoFaults(EvalInTrainInCapitals, Tolerance):
    mutants = Environment.mutants


# What a verifier accepts


class Bare(Sum):
    """Sound: the reply is the number and nothing else."""

    parts: ClassVar[Mapping[str, float]] = {"reward": 1.0}

    def asked(self, key: TaskKey, one: int, two: int) -> Task[int]:
        return Task(key, f"What is {one} + {two}? Reply with the number.", one + two)

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        return exactly(self.right(task.data, rollout.text), rollout.text.strip()[:99])

    def right(self, data: int, text: str) -> bool:
        return parse_integer(text) == data

    def reference(self, task: Task[int]) -> str:
        return str(task.data)

    def cheats(self, task: Task[int]) -> Sequence[str]:
        return ("none",)


class Metres(Bare):
    """Sound: a unit may be left out, and a full stop does not matter."""

    def right(self, data: int, text: str) -> bool:
        return parse_integer(text.strip().removesuffix(".").removesuffix(" m")) == data

    def reference(self, task: Task[int]) -> str:
        return f"{task.data} m"


class AtMost(Bare):
    def right(self, data: int, text: str) -> bool:
        value = parse_integer(text)
        return value is not None and data * 0.9 < value <= data


class InsideTheRight(Bare):
    def right(self, data: int, text: str) -> bool:
        return len(text.strip()) > 1 and text.strip() in str(data)


class RoughlyTwice(Bare):
    """Tolerates more than it declares."""

    tolerance = 0.005

    def right(self, data: int, text: str) -> bool:
        value = parse_integer(text)
        return value is not None and abs(value - data) <= 0.02 * data


class MaySkip(Bare):
    """A way out that is never held against anybody."""

    def asked(self, key: TaskKey, one: int, two: int) -> Task[int]:
        task = super().asked(key, one, two)
        return Task(key, f"{task.prompt} Reply 'skip' if you do not know.", task.data)

    def right(self, data: int, text: str) -> bool:
        return text.strip() == "skip" or super().right(data, text)


# How a verifier reads words

FIRST = ("Marie", "Albert", "Isaac", "Rosa", "Niels", "Alan", "Grace", "Emmy", "Carl", "Ada")
LAST = ("Lindqvist", "Marstow", "Benholm", "Carter", "Dorning", "Elsberg", "Farrow", "Golding")


class WithoutMarks(Environment[str]):
    """Compares names without case and marks, and says nothing of it."""

    levels = False
    answer_in_prompt = True

    def task(self, key: TaskKey) -> Task[str]:
        rng = key.rng()
        names = [f"{first} {rng.choice(LAST)}" for first in rng.sample(FIRST, 4)]
        years = [2 * year + (key.split == "eval") for year in rng.sample(range(750, 995), 4)]
        rows = [f"{name} was born in {year}" for name, year in zip(names, years, strict=True)]
        prompt = f"{'; '.join(rows)}. Who was born in {years[2]}? Reply with the name."
        return Task(key, prompt, names[2])

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        text = rollout.text.strip()
        right = len(text) < 300 and self.normalised(text) == self.normalised(task.data)
        return exactly(right, text)

    def normalised(self, text: str) -> str:
        return " ".join("".join(c for c in text.lower() if c not in string.punctuation).split())

    def reference(self, task: Task[str]) -> str:
        return task.data


class WithoutMarksAsDeclared(WithoutMarks):
    """Sound: declares how it reads words."""

    free_spelling = True


class OutOfOrderAsDeclared(WithoutMarksAsDeclared):
    """Does not look at the order of the letters."""

    def normalised(self, text: str) -> str:
        return "".join(sorted(text.replace(" ", "").lower()))


FAULTS: Mapping[type[Environment[Any]], str] = {
    WaivesWithoutReason: "declared.contract",
    WaivesAnUnknownCheck: "declared.contract",
    WaivesWhatAllRestsOn: "declared.contract",
    ToleratesEverything: "declared.contract",
    AnswersInTheMiddle: "declared.contract",
    RoughlyTwice: "floor.near",
    AtMost: "floor.near",
    InsideTheRight: "floor.near",
    MaySkip: "floor.constant",
    WithoutMarks: "floor.spelling",
    OutOfOrderAsDeclared: "floor",
}
"""Each fault with the check, or the group, that has to find it; the catalogue in tests/kit has many more."""
