"""Toy environments whose verifiers accept too much in one way each, beside sound ones that look alike; in a module of their own, for other processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from planted import EvalInTrainInCapitals, Sum, Tolerance

from grpo_core import Environment

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


class Waives(Sum):
    """Sound: says which check does not apply, and why."""

    waived: ClassVar[Mapping[str, str]] = {"floor.near": "the ruler is coarse"}


class TwoFaults(EvalInTrainInCapitals, Tolerance):
    pass


FAULTS: Mapping[type[Environment[Any]], str] = {
    WaivesWithoutReason: "declared.contract",
    WaivesAnUnknownCheck: "declared.contract",
    WaivesWhatAllRestsOn: "declared.contract",
    ToleratesEverything: "declared.contract",
    AnswersInTheMiddle: "declared.contract",
}
"""Each fault with the check that has to find it."""
