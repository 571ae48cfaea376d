"""Keep what was computed lately."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

V = TypeVar("V")


class Recent(Generic[V]):
    """Holds the values that were asked for last, by name."""

    def __init__(self, most: int) -> None:
        """Hold at most so many values."""
        self._most = most
        self._values: dict[Hashable, V] = {}

    def get(self, name: Hashable, compute: Callable[[], V]) -> V:
        """Return the value of a name, computed if it is not held."""
        held = self._values.pop(name, None)  # in one step, as several threads may ask
        value = compute() if held is None else held
        self._values[name] = value
        if len(self._values) > self._most:
            self._values.pop(next(iter(self._values)), None)
        return value
