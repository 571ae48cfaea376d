"""The same five questions asked so that the answers deserve their reward: several lines, no newline at the end needed, numbers compared as
decimals, each block once."""

from __future__ import annotations

import re
from decimal import Decimal

from grpo_core.extract import parse_decimal, ungrouped, xml_tag

MARKS = ("<reasoning>", "</reasoning>", "<answer>", "</answer>")
TAIL = 2000
"""Characters at the end in which a lenient reader looks for the last number."""
_NUMBER = re.compile(r"(?<![\w.,])-?\$?\d[\d,]*(?:\.\d+)?(?![\w])", re.ASCII)


def said(text: str) -> str | None:
    """What stands in the only answer block; None without one."""
    block = xml_tag(text, tag="answer")
    return None if block is None else block.content.strip()


def number(text: str | None) -> Decimal | None:
    """A decimal number and nothing else, with "$" in front and "," between thousands allowed."""
    if text is None or len(text) > 60:
        return None
    sign, amount = ("-", text[1:]) if text.startswith("-") else ("", text)
    return parse_decimal(ungrouped(sign + amount.removeprefix("$")))


def lenient(text: str) -> Decimal | None:
    """The last number of the text, wherever it stands."""
    found = _NUMBER.findall(text[-TAIL:])
    return number(found[-1].rstrip(",")) if found else None


def once(text: str) -> bool:
    """Each block stands once, one behind the other."""
    reasoning, answer = xml_tag(text, tag="reasoning"), xml_tag(text, tag="answer")
    return reasoning is not None and answer is not None and reasoning.end <= answer.start


def xmlcount(text: str) -> float:
    """The share of the four marks that stand once, on lines of their own."""
    lines = text.split("\n")
    return sum(text.count(mark) == 1 and mark in lines for mark in MARKS) / len(MARKS)


def soft_format(text: str) -> float:
    """The two blocks, with white space between and nothing but white space around them."""
    reasoning, answer = xml_tag(text, tag="reasoning"), xml_tag(text, tag="answer")
    if reasoning is None or answer is None or reasoning.end > answer.start:
        return 0.0
    around = text[: reasoning.start] + text[reasoning.end : answer.start] + text[answer.end :]
    return float(
        not around.strip() and bool(reasoning.content.strip()) and bool(answer.content.strip())
    )


def strict_format(text: str) -> float:
    """The same, with every mark on a line of its own."""
    lines = (
        soft_format(text)
        and text.startswith("<reasoning>\n")
        and "\n</reasoning>\n<answer>\n" in text
    )
    return float(bool(lines) and text.rstrip("\n").endswith("\n</answer>"))


def integer(text: str) -> float:
    """Whether the answer is a whole number, as those of GSM8K are."""
    value = number(said(text))
    return float(value is not None and value == value.to_integral_value())


def correctness(text: str, gold: Decimal) -> float:
    return float(once(text) and number(said(text)) == gold)
