"""Reward functions for the rows of a plant nursery."""

from __future__ import annotations

import re
from typing import Any

from grpo_core.extract import parse_integer, xml_tag


def recalled_words(text: str, row: dict[str, Any]) -> float:
    """Return the share of the words of the right number that the reply has."""
    block = xml_tag(text, tag="answer")
    if block is None:
        return 0.0
    wanted = set(str(row["words"]).split())
    said = set(re.findall(r"[a-z]+", block.content.lower()))
    return len(wanted & said) / len(wanted)


def form_and_number(text: str, row: dict[str, Any]) -> float:
    """Return the pay for thoughts, for an answer and for the right number, 1 at most."""
    score = 0.0
    if xml_tag(text, tag="think") is not None:
        score += 0.5
    block = xml_tag(text, tag="answer")
    if block is not None:
        score += 0.5
        if parse_integer(block.content, max_digits=6) == int(row["answer"]):
            score += 1.0
    return min(score, 1.0)
