"""Shorten texts for messages, and compare how they begin."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile


def cut(text: str, size: int) -> str:
    """Return `text`, cut after `size` characters; "..." behind them shows that there is more."""
    return text if len(text) <= size else f"{text[:size]}..."


def fit(text: str, size: int) -> str:
    """Return `text` in at most `size` characters, of which the last are "..." if there is more."""
    return text if len(text) <= size else f"{text[: size - 3]}..."


def shorten(text: object, size: int = 60) -> str:
    """Return `text` quoted, and cut after `size` characters."""
    return cut(repr(text), size)


def common_prefix(texts: Sequence[str]) -> str:
    """Return the longest text with which all texts begin."""
    columns = takewhile(lambda column: len(set(column)) == 1, zip(*texts, strict=False))
    return "".join(column[0] for column in columns)
