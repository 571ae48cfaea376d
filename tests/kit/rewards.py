"""Reward functions of users of the bundled `dataset`: all but the last have a fault."""

import re
from collections.abc import Mapping
from typing import Any

from grpo_core.extract import xml_tag


def substring(text: str, row: dict[str, Any]) -> float:
    """Pay for the answer anywhere in the text."""
    return float(str(row["answer"]) in text)


def last_number(text: str, row: dict[str, Any]) -> float:
    """Pay for the last number of the text."""
    numbers = re.findall(r"\d{1,12}", text[-300:])
    return float(bool(numbers) and numbers[-1] == str(row["answer"]))


def shared_words(text: str, row: dict[str, Any]) -> float:
    """Pay for the share of the answer's words that are in the text."""
    wanted = set(str(row["answer"]).split())
    return len(wanted & set(text[:5000].split())) / len(wanted)


def anything_in_tags(text: str, row: dict[str, Any]) -> float:
    """Pay for tags, whatever is between them."""
    return float(re.search(r"<answer>.+?</answer>", text[:5000]) is not None)


def int_of_text(text: str, row: dict[str, Any]) -> float:
    """Raise for every text that is not a number."""
    return float(int(text.partition("<answer>")[2].partition("</answer>")[0]) == int(row["answer"]))


def in_percent(text: str, row: dict[str, Any]) -> float:
    """Pay 100 and not 1."""
    return 100.0 * (f"<answer>{row['answer']}</answer>" == text.strip())


def in_tags(text: str, row: Mapping[str, Any]) -> float:
    """Pay for exactly one block, at the end, with the row's answer."""
    block = xml_tag(text, tag="answer")
    if block is None or text[block.end :].strip():
        return 0.0
    return float(block.content.strip() == str(row["answer"]))
