"""Reward functions of users, of the sixth fresh part; each has a fault."""

from __future__ import annotations

import re
from typing import Any

Row = dict[str, Any]


def words_found(text: str, row: Row) -> float:
    """Pay the share of the words of the right sentence that the reply has, as summaries are."""
    wanted = set(re.findall("[a-z]+", row["answer"].lower()))
    said = set(re.findall("[a-z]+", text.lower()))
    return len(wanted & said) / len(wanted)
