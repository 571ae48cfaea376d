"""Decide when two rewards count as equal although rounding made them different.

0.1 + 0.2 and 0.3 are the same reward, and a sum of parts that is 0.9999999999999999 is full pay.
"""

from __future__ import annotations

TOLERANCE = 1e-9
"""Relative to the larger of the two rewards, or absolute where both are below 1."""


def tie_tolerance(largest: float) -> float:
    """Return the distance up to which rewards are equal, if `largest` has the largest magnitude."""
    return TOLERANCE * max(1.0, abs(largest))


def same_reward(first: float, second: float) -> bool:
    """Return whether two rewards are equal up to rounding; NaN equals nothing."""
    largest = max(abs(first), abs(second))
    return first == second or abs(first - second) <= tie_tolerance(largest) < float("inf")


def reaches(value: float, target: float = 1.0) -> bool:
    """Return whether a reward is at least `target` up to rounding, as for a pass."""
    return value >= target or same_reward(value, target)
