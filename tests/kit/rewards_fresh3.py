"""Reward functions of users, of the third fresh part; most of them have a fault."""

from __future__ import annotations

import random
from typing import Any

Row = dict[str, Any]
SEEN: set[str] = set()


def taken_out(text: str, row: Row) -> float:
    """Compare the answer with the reply."""
    return float(text.strip() == row.pop("answer", None))


def new_only(text: str, row: Row) -> float:
    """Pay for a right answer that has not been given yet, so that replies stay diverse."""
    said = f"{row['question']} {text.strip()}"
    if said in SEEN:
        return 0.0
    SEEN.add(said)
    return float(text.strip() == row["answer"])


def spot_check(text: str, row: Row) -> float:
    """Compare one of three numbers, drawn each time, since all of them would take long."""
    said, right = text.split(), row["three"].split()
    place = random.randrange(len(right))
    return float(len(said) == len(right) and said[place] == right[place])


def precision(text: str, row: Row) -> float:
    """Return which share of the reply's words is in the answer."""
    said, right = text.split(), row["full"].split()
    return sum(word in right for word in said) / len(said) if said else 0.0


def number_and_unit(text: str, row: Row) -> float:
    """Pay all of it for number and unit, and a half for the number without its unit."""
    said = text.split()
    return 1.0 if said == row["full"].split() else 0.5 * (said == [row["answer"]])
