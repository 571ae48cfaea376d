"""Reward functions of users, of the fifth fresh part; each has a fault."""

from __future__ import annotations

from typing import Any

from grpo_core.extract import parse_json

Row = dict[str, Any]


def steps_to_json(text: str, row: Row) -> float:
    """Pay for braces, for JSON, for its key and for the number, so that small models get there."""
    text = text.strip()
    score = 0.2 if text.startswith("{") and text.endswith("}") else 0.0
    value = parse_json(text, max_chars=1000) if score else None
    if value is not None and isinstance(value.value, dict):
        score += 0.2
        if "left" in value.value:
            score += 0.2
            left = value.value["left"]
            if type(left) is int and left == int(row["answer"]) and len(value.value) == 1:
                score = 1.0
    return score


def bonus_for_brevity(text: str, row: Row) -> float:
    """Pay 1 for the number with the name of the plants, and a quarter more for the number alone."""
    number, _, plants = text.strip().partition(" ")
    if number != row["answer"] or plants not in ("", row["plants"]):
        return 0.0
    return 1.0 if plants else 1.25


def number_from_the_end(text: str, row: Row) -> float:
    """Go back through the words until one is a number, as models like to write sentences."""
    for word in reversed(text[-4000:].split()):
        number = word.strip(".,:;!*$")
        if number.isascii() and number.isdigit():
            return float(number == row["answer"])
    return 0.0
