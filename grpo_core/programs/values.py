"""Compare plain values, and describe the calls that must return them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Case:
    """Describes one call and the value that it must return."""

    arguments: tuple[Any, ...]
    expected: Any


def same_value(actual: Any, expected: Any) -> bool:
    """Return whether two plain values are equal in type and value, at every depth.

    True is not 1, 1 is not 1.0, a list is not a tuple, and NaN equals nothing. The order of a dict
    or a set does not matter.
    """
    if type(actual) is not type(expected):
        return False
    if isinstance(expected, list | tuple):
        return len(actual) == len(expected) and all(map(same_value, actual, expected))
    if isinstance(expected, dict | set | frozenset):
        return comparable(actual) == comparable(expected)
    return bool(actual == expected)


def constant_share(cases: Sequence[Case]) -> float:
    """Return the share of cases that the best constant answer passes."""
    return max(Counter(comparable(case.expected) for case in cases).values()) / len(cases)


def comparable(value: Any) -> Hashable:
    """Return a hashable form of a value, equal for two values exactly if they are the same."""
    if isinstance(value, list | tuple):
        return type(value), tuple(map(comparable, value))
    if isinstance(value, set | frozenset):
        return type(value), frozenset(map(comparable, value))
    if isinstance(value, dict):
        items = ((comparable(key), comparable(item)) for key, item in value.items())
        return type(value), frozenset(items)
    # A tuple would call NaN equal to itself, so a new object stands for it.
    return type(value), value if value == value else object()
