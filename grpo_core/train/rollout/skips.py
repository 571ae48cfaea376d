"""Number the tasks of a stream without those that are left out of it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping, Sequence


class Skips:
    """Hold which numbers of each environment's stream of tasks are left out.

    A number is left out when its turn comes, so which numbers follow does not depend on how much
    was known of them before.

    Args:
        numbers: the numbers that are left out, in increasing order, by environment.
    """

    def __init__(self, numbers: Mapping[str, Sequence[int]] | None = None) -> None:
        self._numbers = {name: list(left_out) for name, left_out in (numbers or {}).items()}

    @property
    def total(self) -> int:
        """Return how many numbers are left out."""
        return sum(map(len, self._numbers.values()))

    def nth(self, name: str, place: int) -> int:
        """Return the number at `place`, from 0, among those that are not left out."""
        numbers = self._numbers.get(name, [])
        # Of the numbers before the i-th that is left out, i are left out, too.
        return place + bisect_right(
            range(len(numbers)), place, key=lambda before: numbers[before] - before
        )

    def add(self, name: str, number: int) -> None:
        """Leave out a number, which was not left out before."""
        insort(self._numbers.setdefault(name, []), number)

    def series(self, name: str) -> int:
        """Return how many numbers in a row are left out, up to the last that is."""
        numbers = self._numbers.get(name, [])
        if not numbers:
            return 0
        start = numbers[-1] - (len(numbers) - 1)
        return len(numbers) - bisect_left(
            range(len(numbers)), start, key=lambda before: numbers[before] - before
        )

    def state(self, dealt: Mapping[str, int]) -> dict[str, list[int]]:
        """Return the numbers that are left out before the last of the first tasks.

        Args:
            dealt: how many tasks of each environment count.
        """
        return {
            name: numbers[: bisect_left(numbers, self.nth(name, dealt[name] - 1))]
            for name, numbers in self._numbers.items()
            if dealt.get(name)
        }
