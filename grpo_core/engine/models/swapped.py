"""Give objects other values of an attribute for a while."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def swapped(name: str, values: Sequence[tuple[Any, Any]]) -> Iterator[None]:
    """Set the attribute `name` inside the context; restore it untouched afterwards.

    Args:
        name: of the attribute.
        values: pairs of an object and its value inside the context.
    """
    own = [getattr(owner, name) for owner, _ in values]
    try:
        for owner, value in values:
            setattr(owner, name, value)
        yield
    finally:
        for (owner, _), value in zip(values, own, strict=True):
            setattr(owner, name, value)
