"""The five reward functions of the demo that many GRPO runs start from, bug for bug, to compare with: willccbb's `grpo_demo.py`.

Known faults: the strict format wants a newline behind </answer>, which no model writes that stops at its end token; without it
`xmlcount` takes the length of the whole text off; a reply without tags is read as a whole, so that a bare number earns 2.5 of 4 points;
numbers are compared as text; `isdigit` knows neither "-5" nor "18.0" but "²"; blocks may stand twice. Its first version also let the
patterns end at a line (dotall=False), so that reasoning of two lines had no format.
"""

from __future__ import annotations

import re

MOST = 20_000
"""Characters that the patterns look at: they backtrack, and no completion of the demo's 786 tokens is longer."""


def extracted(text: str) -> str:
    return text.split("<answer>")[-1].split("</answer>")[0].strip()


def xmlcount(text: str) -> float:
    found = 0.0
    if text.count("<reasoning>\n") == 1:
        found += 0.125
    if text.count("\n</reasoning>\n") == 1:
        found += 0.125
    if text.count("\n<answer>\n") == 1:
        found += 0.125 - len(text.split("\n</answer>\n")[-1]) * 0.001
    if text.count("\n</answer>") == 1:
        found += 0.125 - (len(text.split("\n</answer>")[-1]) - 1) * 0.001
    return found


def soft_format(text: str, *, dotall: bool = True) -> float:
    return _matches(r"<reasoning>.*?</reasoning>\s*<answer>.*?</answer>", text, dotall)


def strict_format(text: str, *, dotall: bool = True) -> float:
    return _matches(r"^<reasoning>\n.*?\n</reasoning>\n<answer>\n.*?\n</answer>\n$", text, dotall)


def integer(text: str) -> float:
    return 0.5 if extracted(text).isdigit() else 0.0


def correctness(text: str, gold: str) -> float:
    return 2.0 if extracted(text) == gold else 0.0


def _matches(pattern: str, text: str, dotall: bool) -> float:
    return (
        0.5
        if len(text) <= MOST and re.match(pattern, text, flags=re.DOTALL if dotall else 0)
        else 0.0
    )
