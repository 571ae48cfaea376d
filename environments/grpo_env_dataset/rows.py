"""Hold rows with the place that each has in its source, and decide which are held out."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from grpo_core import held_out

Row = dict[str, Any]


class BadRowError(Exception):
    """A row cannot be asked or judged; the message says why."""

    def __init__(self, problem: str, example: str = "") -> None:
        """Describe the problem.

        Args:
            problem: what is wrong, in the same words for all rows with this problem.
            example: the content of this row, where that tells more.
        """
        super().__init__(problem)
        self.example = example


class Number(float):
    """A number with a fraction or an exponent that is shown as it was written, not as by Python.

    It equals the float, but as text it has all digits of the file and no exponent: 0.00001, and
    not 1e-05.
    """

    __slots__ = ("text",)
    text: str

    def __new__(cls, digits: str) -> Number:
        """Return the number that `digits` are.

        Raises:
            ValueError: it is so close to 0 that a float cannot tell it from 0.
        """
        number = super().__new__(cls, digits)
        exact = Decimal(digits)
        if exact and not number:
            raise ValueError(f"the number {digits} is too small")
        number.text = format(exact, "f")
        return number

    def __getnewargs__(self) -> tuple[str]:  # type: ignore[override]
        """Return what `pickle` and `copy` make the number of."""
        return (self.text,)

    def __str__(self) -> str:
        """Return the number as it was written, without an exponent."""
        return self.text

    def __format__(self, spec: str) -> str:
        """Return the number as it was written, or in a form that is asked for."""
        return super().__format__(spec) if spec else self.text


@dataclass(frozen=True, slots=True)
class Table:
    """Holds the rows of one source."""

    source: str
    """The name of the file or dataset, for messages."""
    rows: Sequence[Row]
    numbers: Sequence[int]
    """The number of each row in the source, which in a file is that of its line."""
    is_file: bool = False
    """Whether they come from a file, in which there must be nothing that is not JSON."""

    def where(self, index: int) -> str:
        """Return the place of a row, for messages."""
        return f"row {self.numbers[index]} of {self.source}"

    def with_rows(self, rows: Sequence[Row]) -> Table:
        """Return a table whose rows are these, in the same places."""
        return replace(self, rows=rows)

    def part(self, chosen: Sequence[int]) -> Table:
        """Return the rows with these indices."""
        return replace(
            self,
            rows=[self.rows[index] for index in chosen],
            numbers=[self.numbers[index] for index in chosen],
        )


def has_constant(value: Any) -> bool:
    """Return whether NaN or an infinity is somewhere in a value."""
    if isinstance(value, dict | list):
        return any(map(has_constant, value.values() if isinstance(value, dict) else value))
    return isinstance(value, float) and not math.isfinite(value)


def value_at(row: Row, name: str) -> Any:
    """Return the value of a field; the name of one in another one has dots, as in "info.answer".

    Raises:
        KeyError: there is none.
    """
    if name in row:
        return row[name]
    value: Any = row
    for part in name.split("."):
        if not isinstance(value, dict):
            raise KeyError(name)
        value = value[part]
    return value


def has_field(row: Row, name: str) -> bool:
    """Return whether a row has a field; see `value_at`."""
    try:
        value_at(row, name)
    except KeyError:
        return False
    return True


def plain_row(row: Row) -> Row:
    """Return a copy of a row as a user's function expects it, with ordinary floats."""
    plain: Row = with_values(row, lambda value: float(value) if type(value) is Number else value)
    return plain


def with_values(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a copy of nested lists and dictionaries with all their values changed."""
    if isinstance(value, dict):
        return {key: with_values(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [with_values(item, change) for item in value]
    return change(value)


def split_rows(rows: Table, prompts: Sequence[str], share: float) -> tuple[Table, Table]:
    """Split the rows into training and held-out rows by the words of each row's prompt.

    Table whose prompts differ in case, spacing, punctuation or the order of their words only are
    always on the same side, even if their other fields (a number, a source, another answer) differ.
    Another prompt template holds out other rows.

    Args:
        rows: the rows.
        prompts: the prompt of each row.
        share: share of the prompts to hold out, 0 to below 1.
    """
    is_held_out = [held_out(prompt, share) for prompt in prompts]
    train = [index for index, out in enumerate(is_held_out) if not out]
    return rows.part(train), rows.part([index for index, out in enumerate(is_held_out) if out])


def hash_rows(rows: Sequence[Row]) -> str:
    """Return a hash of the rows, for the environment's fingerprint."""
    written = with_values(
        list(rows), lambda value: ["number", value.text] if type(value) is Number else value
    )
    return hashlib.sha256(json.dumps(written, sort_keys=True, default=str).encode()).hexdigest()
