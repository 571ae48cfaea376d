"""Statistics for looking at a run at every step: pure functions and small states.

Two kinds of test are used, and both say how often they are wrong although they look again and
again.

* `ChangeDetector` watches numbers from 0 to 1 whose mean should not exceed a bound. It is a
  Shiryaev-Roberts e-detector (Shin, Ramdas and Rinaldo, arXiv 2203.03532): as long as the mean,
  given the past, stays within the bound, the expected number of looks until it reports is at least
  `run_length`. Nothing else is assumed of the numbers.
* `exceeds` compares two sets of groups by Welch's test. Its k-th look spends the share
  1 / (k (k + 1)) of the chance of a false report, so all looks of a run together have at most that
  chance (by the union bound, however much the looks depend on one another).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Self

from grpo_core.figures.statistics import t_quantile
from grpo_core.protocol.ties import difference

LEAST_CHANCE = 1e-15
"""The least chance of being wrong that a comparison is made with: 1 minus it is not yet 1."""


class ChangeDetector:
    """Report when the mean of numbers from 0 to 1 has risen above a bound.

    Args:
        bound: the highest mean that is in order, below 1.
        target: a mean that should be reported soon; it decides how fast evidence grows.
        run_length: the least expected number of looks until a false report.
    """

    def __init__(self, *, bound: float, target: float, run_length: float) -> None:
        self._bound, self._run_length = bound, run_length
        # The bet that is best against attempts that are paid with the chance `target`.
        self._bet = (target - bound) / (bound * (1 - bound))
        self.evidence = 0.0
        self.active = False
        """Whether the report that began last still holds."""

    def add(self, numbers: Iterable[float]) -> bool:
        """Look at new numbers; return whether a report begins.

        The evidence is capped, so that a report ends soon after the mean has fallen again.
        """
        factor = math.prod(1 + self._bet * (number - self._bound) for number in numbers)
        self.evidence = min((self.evidence + 1) * factor, self._run_length)
        begins = not self.active and self.evidence >= self._run_length
        self.active = begins or (self.active and self.evidence >= 1)
        return begins

    def state(self) -> list[float]:
        """Return what a checkpoint stores."""
        return [self.evidence, float(self.active)]

    def restore(self, state: Sequence[float]) -> None:
        """Restore the state of a checkpoint."""
        self.evidence, self.active = state[0], bool(state[1])


@dataclass(frozen=True, slots=True)
class RewardSums:
    """Hold sums over groups of a measure x and the mean reward r of each."""

    count: float = 0.0
    x: float = 0.0
    xx: float = 0.0
    r: float = 0.0
    rr: float = 0.0
    xr: float = 0.0
    attempts: float = 0.0
    """The number of attempts with both; the next sums are over these."""
    attempt_x: float = 0.0
    attempt_r: float = 0.0
    attempt_rr: float = 0.0
    attempt_xr: float = 0.0

    def __add__(self, other: RewardSums) -> RewardSums:
        return RewardSums(*(a + b for a, b in zip(self.to_json(), other.to_json(), strict=True)))

    @classmethod
    def of(cls, groups: Iterable[Sequence[tuple[float, float]]]) -> RewardSums:
        """Return the sums over groups, each given by (measure, reward) of its attempts."""
        totals = [0.0] * len(fields(cls))
        for pairs in filter(None, groups):
            n, x = len(pairs), math.fsum(x for x, _ in pairs)
            r = math.fsum(r for _, r in pairs)
            rr, xr = math.fsum(r * r for _, r in pairs), math.fsum(x * r for x, r in pairs)
            mean_x, mean_r = x / n, r / n
            of_group = (1.0, mean_x, mean_x**2, mean_r, mean_r**2, mean_x * mean_r, n, x, r, rr, xr)
            totals = [total + value for total, value in zip(totals, of_group, strict=True)]
        return cls(*totals)

    def to_json(self) -> list[float]:
        """Return the sums in the order of the fields."""
        return [getattr(self, field.name) for field in fields(self)]

    @classmethod
    def from_json(cls, values: Sequence[float]) -> Self:
        """Return the sums that `to_json` wrote."""
        return cls(*values)

    @property
    def slope(self) -> float:
        """Return how much x rises with the reward, from attempt to attempt; 0 if that is unknown.

        A negative slope counts as 0: no rise is then expected of x.
        """
        if not self.attempts:
            return 0.0
        variance = self.attempt_rr - self.attempt_r**2 / self.attempts
        covariance = self.attempt_xr - self.attempt_x * self.attempt_r / self.attempts
        return max(0.0, covariance / variance) if variance > 1e-9 * self.attempts else 0.0

    def mean_and_error(self, of_x: float, of_r: float) -> tuple[float, float]:
        """Return mean and squared standard error of `of_x` x + `of_r` r over the groups."""
        n = self.count
        mean = (of_x * self.x + of_r * self.r) / n
        squares = of_x**2 * self.xx + of_r**2 * self.rr + 2 * of_x * of_r * self.xr
        return mean, max(0.0, squares - n * mean**2) / (n * (n - 1))


@dataclass(frozen=True, slots=True)
class Change:
    """Compare two sets of groups: by how much a mean has risen, and how surely."""

    before: float
    after: float
    error: float
    """The standard error of the difference."""
    freedom: float
    """The degrees of freedom (Welch)."""

    @property
    def rise(self) -> float:
        """Return by how much the mean has risen; 0 if by no more than rounding."""
        return difference(self.before, self.after)

    def exceeds(self, chance: float, *, by: float = 0.0) -> bool:
        """Return whether the mean has risen by more than `by`, with this chance of being wrong."""
        if self.error == 0:
            return self.rise > by
        # 1 - chance must not round to 1.
        quantile = t_quantile(1 - max(chance, LEAST_CHANCE), max(3, math.floor(self.freedom)))
        return self.rise - by > quantile * self.error

    def stays_below(self, chance: float, *, by: float) -> bool:
        """Return whether the mean has risen by less than `by`, with this chance of being wrong."""
        return Change(-self.before, -self.after, self.error, self.freedom).exceeds(chance, by=-by)


def change(
    before: RewardSums, after: RewardSums, *, of_x: float = 1.0, of_r: float = 0.0
) -> Change:
    """Compare the mean of `of_x` x + `of_r` r over two sets of at least two groups."""
    (mean_1, error_1), (mean_2, error_2) = (
        sums.mean_and_error(of_x, of_r) for sums in (before, after)
    )
    error = error_1 + error_2
    spread = error_1**2 / (before.count - 1) + error_2**2 / (after.count - 1)
    freedom = error**2 / spread if spread > 0 else before.count + after.count - 2
    return Change(mean_1, mean_2, math.sqrt(error), freedom)


def paired_change(before: Sequence[float], after: Sequence[float]) -> Change:
    """Compare two measures of the same things, of which there are at least two."""
    n = len(before)
    differences = [b - a for a, b in zip(before, after, strict=True)]
    mean = math.fsum(differences) / n
    variance = math.fsum((value - mean) ** 2 for value in differences) / (n - 1)
    start = math.fsum(before) / n
    return Change(start, start + mean, math.sqrt(variance / n), n - 1)


def spent(chance: float, look: int) -> float:
    """Return the share of the chance of a false report that the look number 1, 2, ... spends."""
    return chance / (look * (look + 1))
