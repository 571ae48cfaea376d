"""Reward functions for rows."""

import re
from typing import Any

from grpo_core.extract import xml_tag


def minutes_under_way(text: str, row: dict[str, Any]) -> float:
    """Pay for the right number of minutes in the only <answer>."""
    block = xml_tag(text, tag="answer")
    given = "" if block is None else block.content.strip(" \t\r\n")
    if not re.fullmatch("[1-9][0-9]{0,4}", given, re.ASCII):
        return 0.0
    return float(given == str(row["answer"]))
