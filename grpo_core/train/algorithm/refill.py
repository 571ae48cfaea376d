"""Replace groups without a training signal by groups of other prompts, within bounds.

This is dynamic sampling (DAPO, arXiv 2503.14476).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from grpo_core.protocol.types import Group


class Refill:
    """Collect groups until `wanted` of them have an advantage, in at most 1 + `refills` rounds."""

    def __init__(self, *, wanted: int, refills: int) -> None:
        self.groups: list[Group[Any]] = []
        self.rounds = 0
        self._wanted = wanted
        self._max_rounds = 1 + refills
        self._has_signal: list[bool] = []

    @property
    def missing(self) -> int:
        """Return how many prompts the next round has to sample; 0 after the last round."""
        return 0 if self.rounds == self._max_rounds else self._wanted - sum(self._has_signal)

    @property
    def is_last_round(self) -> bool:
        """Return whether no round can follow the present one."""
        return self.rounds + 1 == self._max_rounds

    def add(self, groups: Sequence[Group[Any]], advantage: Tensor) -> None:
        """Add the groups of one round.

        A group whose advantages are all exactly 0 gives no training signal.

        Args:
            groups: the groups of P prompts.
            advantage: of their completions (P, G), or of the turns of these (P, G, T).
        """
        self.rounds += 1
        self.groups += groups
        self._has_signal += (advantage != 0).flatten(1).any(dim=1).tolist()

    def chosen(self) -> Tensor:
        """Return the indices into `groups` to train on, in ascending order.

        Groups with a signal take precedence; others fill up to `wanted`, so that the
        denominators of the loss stay the same.
        """
        live_first = sorted(range(len(self.groups)), key=lambda place: not self._has_signal[place])
        return torch.tensor(sorted(live_first[: self._wanted]))
