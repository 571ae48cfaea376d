"""Honest designs in how tasks are made, of the kinds E."""

from __future__ import annotations

from bases_e2_fresh9 import BerthFees, KnightByWayOf, ScopeOfATable
from bases_e_fresh9 import FenceCipher
from catalogue import honest

from grpo_core import TaskKey


@honest("several squares lie on the way, and every one of them is accepted; no other square is")
class KnightByAnyWay(KnightByWayOf):
    """Asks for any square over which a knight gets somewhere in two moves."""


@honest("there are two levels only, short texts on two rails and long ones on four, as is allowed")
class FenceLowOrHigh(FenceCipher):
    """Asks to decipher a rail fence that is easy below the middle of the range, else hard."""

    def shape(self, key: TaskKey) -> tuple[int, int]:
        return (4, 2) if key.level < 0.5 else (8, 4)


@honest(
    "the rows are a fixed list with a size, so the seed does not matter; none is in both splits"
)
class BerthFeesOfTheList(BerthFees):
    """Asks for the fee of each row of a list, which is the same list in every run."""


@honest("the answer is to be selected from the prompt, which is declared; other rows do not fit")
class ScopeSelected(ScopeOfATable):
    """Asks which telescope of a table meets two demands, of width and of length."""
