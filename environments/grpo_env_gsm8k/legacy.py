"""The five reward functions of a demo that many GRPO runs start from, bug for bug, to compare with.

The demo is willccbb's `grpo_demo.py`. Known faults:

* The strict format needs a newline behind </answer>, which a model that stops at its end token does
  not write. Without that newline, `xmlcount` subtracts the length of the whole text.
* A completion without tags is read as a whole, so that a bare number earns 2.5 of 4 points.
* Numbers are compared as text.
* `isdigit` accepts neither "-5" nor "18.0", but accepts "²".
* Blocks may stand twice.
* In the first version (dotall=False), the patterns also end at a line, so that reasoning of two
  lines does not have the format.
"""

from __future__ import annotations

import re

MAX_CHARS = 20_000
"""Longest text that the patterns are applied to: they backtrack, and no completion of the demo's
786 tokens is longer."""


def extract_answer(text: str) -> str:
    """Return the text behind the last <answer>, up to </answer>; the whole text without tags."""
    return text.split("<answer>")[-1].split("</answer>")[0].strip()


def xmlcount(text: str) -> float:
    """Return 0.125 for each tag that stands once, less 0.001 per character behind the answer."""
    total = 0.0
    if text.count("<reasoning>\n") == 1:
        total += 0.125
    if text.count("\n</reasoning>\n") == 1:
        total += 0.125
    if text.count("\n<answer>\n") == 1:
        total += 0.125 - len(text.split("\n</answer>\n")[-1]) * 0.001
    if text.count("\n</answer>") == 1:
        total += 0.125 - (len(text.split("\n</answer>")[-1]) - 1) * 0.001
    return total


def soft_format(text: str, *, dotall: bool = True) -> float:
    """Return 0.5 if the text begins with the two blocks, else 0."""
    return _match_reward(r"<reasoning>.*?</reasoning>\s*<answer>.*?</answer>", text, dotall)


def strict_format(text: str, *, dotall: bool = True) -> float:
    """Return 0.5 if the text is the two blocks, tags on lines of their own, else 0."""
    pattern = r"^<reasoning>\n.*?\n</reasoning>\n<answer>\n.*?\n</answer>\n$"
    return _match_reward(pattern, text, dotall)


def integer(text: str) -> float:
    """Return 0.5 if the answer consists of digits, else 0."""
    return 0.5 if extract_answer(text).isdigit() else 0.0


def correctness(text: str, gold: str) -> float:
    """Return 2 if the answer is the same text as `gold`, else 0."""
    return 2.0 if extract_answer(text) == gold else 0.0


def _match_reward(pattern: str, text: str, dotall: bool) -> float:
    return (
        0.5
        if len(text) <= MAX_CHARS and re.match(pattern, text, flags=re.DOTALL if dotall else 0)
        else 0.0
    )
