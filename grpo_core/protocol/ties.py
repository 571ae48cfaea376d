"""Decide when two rewards count as equal although rounding made them different.

0.1 + 0.2 and 0.3 are the same reward, and a sum of parts that is 0.9999999999999999 is full pay.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from grpo_core.protocol.same_numbers import same_number

TOLERANCE = 1e-9
"""Relative to the larger of the two rewards, or absolute where both are below 1."""


def same_reward(first: float, second: float) -> bool:
    """Return whether two rewards are equal up to rounding; NaN and infinity equal nothing."""
    lower, higher = sorted((float(first), float(second)), key=abs)
    return same_number(lower, higher, relative=TOLERANCE, absolute=TOLERANCE)


def reaches(value: float, target: float = 1.0) -> bool:
    """Return whether a finite reward is at least `target` up to rounding, as for a pass."""
    return math.isfinite(value) and (value >= target or same_reward(value, target))


def all_same(rewards: Collection[float]) -> bool:
    """Return whether all rewards are equal up to rounding, as none and a single one are."""
    return not rewards or same_reward(min(rewards), max(rewards))


def exceeds(reward: float, other: float) -> bool:
    """Return whether a reward is above another one by more than rounding."""
    return reward > other and not same_reward(reward, other)


def difference(before: float, after: float) -> float:
    """Return how much a reward has changed; 0 if by no more than rounding."""
    return 0.0 if same_reward(before, after) else after - before


def settled(rewards: Sequence[float]) -> list[float]:
    """Return the rewards with those that are equal up to rounding made equal: to the lowest."""
    lowest = -math.inf
    settled_by_reward: dict[float, float] = {}
    for reward in sorted(rewards):
        if not same_reward(lowest, reward):
            lowest = reward
        settled_by_reward[reward] = lowest
    return [settled_by_reward[reward] for reward in rewards]
