"""Decide in tensors when rewards are equal up to rounding, as `grpo_core.protocol.ties` does."""

from __future__ import annotations

import torch
from torch import Tensor

from grpo_core.protocol import ties


def tied(reward_PG: Tensor, scored_PG: Tensor) -> Tensor:
    """Return True (P, 1) for each group whose scored rewards, in float64, are all equal."""
    highest_P1 = torch.where(scored_PG, reward_PG, -torch.inf).amax(dim=1, keepdim=True)
    lowest_P1 = torch.where(scored_PG, reward_PG, torch.inf).amin(dim=1, keepdim=True)
    largest_P1 = torch.maximum(highest_P1.abs(), lowest_P1.abs())
    return highest_P1 - lowest_P1 <= ties.TOLERANCE * largest_P1.clamp(min=1)


def settled(reward_N: Tensor) -> Tensor:
    """Return rewards of a group (N,) with those made equal that are equal up to rounding."""
    return torch.tensor(ties.settled(reward_N.tolist()), dtype=torch.float64)


def cancelled(sum_PG: Tensor, magnitude_PG: Tensor) -> Tensor:
    """Return True (P, 1) for each group in which nothing but rounding is left of all sums.

    Args:
        sum_PG: the sums.
        magnitude_PG: the sums of the same terms without their signs.
    """
    return (sum_PG.abs() <= ties.TOLERANCE * magnitude_PG).all(dim=1, keepdim=True)
