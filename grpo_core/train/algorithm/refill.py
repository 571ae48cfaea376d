"""Dynamic sampling: groups that teach nothing are replaced by those of other prompts, within bounds (DAPO, arXiv 2503.14476)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from grpo_core.protocol.types import Group


class Refill:
    """Collects groups until `wanted` have an advantage, in at most 1 + `refills` rounds."""

    def __init__(self, *, wanted: int, refills: int) -> None:
        self.groups: list[Group[Any]] = []
        self.rounds = 0
        self._wanted = wanted
        self._most = 1 + refills
        self._alive: list[bool] = []

    @property
    def missing(self) -> int:
        """How many prompts to ask in the next round."""
        return 0 if self.rounds == self._most else self._wanted - sum(self._alive)

    def add(self, groups: Sequence[Group[Any]], advantage_PG: Tensor) -> None:
        """A round; a group whose advantages are all exactly 0 teaches nothing."""
        self.rounds += 1
        self.groups += groups
        self._alive += (advantage_PG != 0).any(dim=1).tolist()

    def chosen(self) -> Tensor:
        """Places in `groups` to train on, in their order: those that teach, filled up with others, so that the denominators stay."""
        alive = [place for place, lives in enumerate(self._alive) if lives]
        dead = [place for place, lives in enumerate(self._alive) if not lives]
        return torch.tensor(sorted([*alive, *dead[: self._wanted - len(alive)]]))
