"""Replace groups without a training signal by groups of other prompts, within bounds.

This is dynamic sampling (DAPO, arXiv 2503.14476).
"""

from __future__ import annotations

from torch import Tensor


class Refill:
    """Say how many groups to sample until `wanted` have an advantage, in 1 + `refills` rounds."""

    def __init__(self, *, wanted: int, refills: int) -> None:
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

    def add(self, advantage: Tensor) -> None:
        """Add the groups of one round, by their advantages.

        A group whose advantages are all exactly 0 gives no training signal.

        Args:
            advantage: of the completions of P prompts (P, G), or of their turns (P, G, T).
        """
        self.rounds += 1
        self._has_signal += (advantage != 0).flatten(1).any(dim=1).tolist()

    def chosen(self) -> list[int]:
        """Return the numbers of the groups to train on, in ascending order.

        Groups with a signal take precedence; others fill up to `wanted`, so that the
        denominators of the loss stay the same.
        """
        numbers = range(len(self._has_signal))
        live_first = sorted(numbers, key=lambda number: not self._has_signal[number])
        return sorted(live_first[: self._wanted])
