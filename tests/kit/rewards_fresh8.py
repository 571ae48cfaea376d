"""Reward functions of users of Dataset."""

from __future__ import annotations

import re
from typing import Any


def mentions_minutes(text: str, row: dict[str, Any]) -> float:
    """Return 1 if the row's number is one of those in the reply."""
    numbers = re.findall(r"(?<![0-9.])[0-9]+(?![0-9])", text[:20_000])
    return float(row["answer"] in numbers)
