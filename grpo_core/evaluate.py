"""Statistics of evaluations."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Gain:
    """A paired difference of means with its 95 % interval (normal approximation over tasks)."""

    before: float
    after: float
    low: float
    high: float
    tasks: int

    @property
    def mean(self) -> float:
        return self.after - self.before


def paired_gain(before: Mapping[Key, float], after: Mapping[Key, float]) -> Gain | None:
    """The gain over the tasks scored in both; None with fewer than two."""
    keys = [key for key in before if key in after]
    if len(keys) < 2:
        return None
    differences = [after[key] - before[key] for key in keys]
    margin = 1.96 * stdev(differences) / math.sqrt(len(keys))
    mean = fmean(differences)
    return Gain(fmean(before[key] for key in keys), fmean(after[key] for key in keys), mean - margin, mean + margin, len(keys))
