"""Reward functions of users, of the fourth fresh part; all but the last have a fault."""

from __future__ import annotations

import re
from typing import Any

Row = dict[str, Any]


def shared_words(text: str, row: Row) -> float:
    """Return which share of the words of the right sentence is in the reply."""
    said, right = set(words(text)), set(words(row["sentence"]))
    return len(said & right) / len(right)


def words(text: str) -> list[str]:
    """Return the words of a text, in lower case."""
    return re.findall("[a-z0-9]+", text.lower())


def last_number(text: str, row: Row) -> float:
    """Compare the last number of the reply, since models explain their steps first."""
    numbers: list[str] = re.findall(r"[0-9]+", text[-5000:])
    return float(bool(numbers) and numbers[-1] == row["answer"])


def minutes_or_hours(text: str, row: Row) -> float:
    """Accept the time in minutes, or in hours and minutes, as the prompt says."""
    found = re.fullmatch("(?:([1-9][0-9]?) h )?(0|[1-9][0-9]{0,3}) min", text.strip(), re.ASCII)
    if found is None or (found[1] and int(found[2]) > 59):
        return 0.0
    return float(60 * int(found[1] or 0) + int(found[2]) == int(row["answer"]))
