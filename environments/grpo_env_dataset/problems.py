"""Collect what is wrong with rows, and say it in one message before anything is paid."""

from __future__ import annotations

from grpo_core import ConfigError
from grpo_env_dataset.rows import BadRowError, Table

_NAMED = 8
"""So many rows of one problem are named by their numbers, and the others are counted."""
_KINDS = 20
"""So many kinds of problems are told, and the others are counted."""


class Problems:
    """The problems of rows, by source and kind."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str], list[int]] = {}
        self._examples: dict[tuple[str, str], str] = {}
        self._sizes: dict[str, int] = {}
        self._advice: dict[str, None] = {}

    def add(self, rows: Table, index: int, problem: BadRowError, advice: str) -> None:
        """Add the problem of a row, with what a user can do about it."""
        place = (rows.source, str(problem))
        self._numbers.setdefault(place, []).append(rows.numbers[index])
        self._examples.setdefault(place, problem.example)
        self._sizes[rows.source] = len(rows.rows)
        self._advice[advice] = None

    def refuse(self) -> None:
        """Raise ConfigError if there is a problem; it names all kinds with the rows that have them.

        Raises:
            ConfigError: there is a problem.
        """
        if not self._numbers:
            return
        parts = []
        for (source, problem), numbers in self._numbers.items():
            every = len(numbers) == self._sizes[source]
            rows = f"all {len(numbers)} rows" if every and len(numbers) > 1 else _listed(numbers)
            example = self._examples[source, problem]
            parts.append(f"{rows} of {source}: {problem}{f' ({example})' if example else ''}")
        if (more := len(parts) - _KINDS) > 0:
            parts[_KINDS:] = [f"and {more} more kinds of problems"]
        raise ConfigError(f"{'; '.join(parts)}; {'; '.join(self._advice)}")


def _listed(numbers: list[int]) -> str:
    """Return rows by their numbers: "row 4", "rows 4 and 10", "rows 4, 10 and 3 more"."""
    if len(numbers) == 1:
        return f"row {numbers[0]}"
    named = list(map(str, numbers[:_NAMED]))
    rest = len(numbers) - len(named)
    last = f"{rest} more" if rest else named.pop()
    return f"rows {', '.join(named)} and {last}"
