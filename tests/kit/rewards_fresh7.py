"""Reward functions of users of the environment `dataset`, for the rows of `rows_fresh7.jsonl`."""

from __future__ import annotations

import re
from typing import Any

from grpo_core.extract import parse_integer, xml_tag


def right_and_tidy(text: str, row: dict[str, Any]) -> float:
    """Return 1 for the right answer, and 0.2 for a number in tags with nothing around."""
    block = xml_tag(text, tag="answer")
    if block is None:
        return 0.0
    answer = parse_integer(block.content, max_digits=9)
    tidy = answer is not None and text.strip(" \t\r\n") == text[block.start : block.end]
    return 1.0 * (answer == int(row["answer"])) + 0.2 * tidy


def right_or_near(text: str, row: dict[str, Any]) -> float:
    """Return 1 for the right answer, and up to 0.3 for one that is near."""
    block = xml_tag(text, tag="answer")
    if block is None:
        return 0.0
    answer, right = block.content.strip(" \t\r\n"), row["answer"]
    if answer == right:
        return 1.0
    distance = abs(int(answer) - int(right)) / int(right)
    return max(0.0, 0.3 - distance)


def number_at_last(text: str, row: dict[str, Any]) -> float:
    """Return whether the last number of a reply is the right one, however it is introduced."""
    numbers = re.findall(r"(?<![0-9.])[0-9]{1,9}(?![0-9]|\.[0-9])", text[-20_000:])
    return float(bool(numbers) and numbers[-1] == row["answer"])
