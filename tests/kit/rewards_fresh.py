"""Reward functions of users of the bundled `dataset`, fresh half: each has a fault."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from grpo_core.extract import parse_integer, xml_tag


def block_of(text: str) -> str:
    """Return what the only block at the end of the reply holds; "" if there is none."""
    block = xml_tag(text, tag="answer")
    return "" if block is None or text[block.end :].strip() else block.content.strip()


def answer_in_block(text: str, row: dict[str, Any]) -> float:
    """Look for the answer in what the block holds."""
    return float(str(row["answer"]) in block_of(text))


def block_in_answer(text: str, row: dict[str, Any]) -> float:
    """Look for what the block holds in the answer."""
    content = block_of(text)
    return float(bool(content) and content in str(row["answer"]))


def any_case(text: str, row: dict[str, Any]) -> float:
    """Look for the answer in the whole text, whatever its case and its marks."""
    plain = re.sub(r"[^a-z0-9]", "", text[:20_000].lower())
    return float(re.sub(r"[^a-z0-9]", "", str(row["answer"]).lower()) in plain)


def first_number(text: str, row: dict[str, Any]) -> float:
    """Pay for the first number of the block."""
    found = re.search(r"[0-9]{1,9}", block_of(text))
    return float(found is not None and found.group() == str(row["answer"]))


def within_ten_percent(text: str, row: dict[str, Any]) -> float:
    """Pay for what is nearly right."""
    value, right = parse_integer(block_of(text), max_digits=9), int(row["answer"])
    return float(value is not None and abs(value - right) <= 0.1 * right)


def same_digits(text: str, row: dict[str, Any]) -> float:
    """Compare how often each digit is there."""
    content = block_of(text)
    return float(content.isascii() and Counter(content[:99]) == Counter(str(row["answer"])))


def starts_alike(text: str, row: dict[str, Any]) -> float:
    """Compare as many characters as the shorter one has."""
    pairs = zip(block_of(text), str(row["answer"]), strict=False)
    return float(all(one == two for one, two in pairs))


def float_of_block(text: str, row: dict[str, Any]) -> float:
    """Raise for whatever float() cannot read."""
    return float(abs(float(block_of(text)) - float(row["answer"])) < 0.5)


def by_keyword(text: str, row: dict[str, Any]) -> float:
    """Pay a part for naming the city of the question."""
    right = block_of(text) == str(row["answer"])
    return 1.0 if right else 0.3 * (str(row["city"]) in text[:5000])


def points(text: str, row: dict[str, Any]) -> float:
    """Pay 2 for a right answer and 0.5 for a block."""
    content = block_of(text)
    return 0.5 * bool(content) + 1.5 * (content == str(row["answer"]))


def nothing_for_wrong(text: str, row: dict[str, Any]) -> float | None:
    """Return None, and no number, for a wrong answer."""
    return 1.0 if block_of(text) == str(row["answer"]) else None


def wrong_is_minus_one(text: str, row: dict[str, Any]) -> float:
    """Pay -1 for a wrong answer."""
    return 1.0 if block_of(text) == str(row["answer"]) else -1.0


def any_failure_is_zero(text: str, row: dict[str, Any]) -> float:
    """Take a row without the column for a wrong answer."""
    try:
        return float(int(block_of(text)) == int(row["result"]))
    except Exception:  # noqa: BLE001
        return 0.0
