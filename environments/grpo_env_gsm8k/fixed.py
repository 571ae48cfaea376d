"""The five reward functions of the demo without its faults.

Reasoning may have several lines, no newline is needed at the end, and each block counts only if it
stands once. Numbers are compared by their values, in the forms in which models write them; the
parts that reward the format are strict.
"""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction

from grpo_core.extract import (
    NoAnswer,
    find_tag,
    parse_answer_number,
    parse_decimal,
    same_number,
    ungrouped,
    xml_tag,
)

TAGS = ("<reasoning>", "</reasoning>", "<answer>", "</answer>")
TAIL = 2000
"""Characters at the end of the text in which `last_number` looks for a number."""
_NUMBER = re.compile(
    r"""
    (?<! [\w.,] )  # not inside of a word or of another number
    (?P<sign> [-\u2212\u2013\uff0d] (?! \s ) )?
    [$\u20ac\xa3\xa5]?
    (?P<amount>
        [0-9]{1,3} (?: [ \xa0\u2009\u202f][0-9]{3} (?! [0-9] ) )+ (?: \.[0-9]+ )?
        | [0-9]+ (?: [.,][0-9]+ )*
        | \.[0-9]+
    )
    (?P<unit> \w* )
    (?P<scale> \s+ (?: hundred | thousand | million | billion | dozen | [0-9]+/[0-9] ) )?
    """,
    re.VERBOSE | re.IGNORECASE,
)
_PART = re.compile("[0-9][/:]")
_SPACES = re.compile(r"[ \xa0\u2009\u202f]")
_UNIT = re.compile(
    "kg|g|mg|lbs?|oz|km|cm|mm|ft|in|mi|l|ml|h|hrs?|mins?|s|sec|mph|kmh|gb|mb", re.IGNORECASE
)
"""What may follow a number without a space and leave it that number, as k and m do not, nor th."""


def extract_answer(text: str) -> str | None:
    """Return the content of the only answer block, or None if there is no such block."""
    block = xml_tag(text, tag="answer")
    return None if block is None else block.content.strip()


def parse_number(text: str | None) -> Decimal | None:
    """Parse a text that is a decimal number and nothing else, or return None.

    "$" in front and "," between thousands are allowed.
    """
    if text is None or len(text) > 60:
        return None
    sign, amount = ("-", text[1:]) if text.startswith("-") else ("", text)
    return parse_decimal(ungrouped(sign + amount.removeprefix("$")))


def last_number(text: str) -> Decimal | None:
    """Return the last number of the text, wherever it stands, or None if there is none.

    A number that cannot be read is not taken for another one, and neither is one before it: None
    for 3.5.1, 1e5, 5th, 3/4, 2:30 and 5 million.
    """
    numbers = list(_NUMBER.finditer(text, max(0, len(text) - TAIL)))
    if not numbers:
        return None
    last = numbers[-1]
    is_part = _PART.fullmatch(text[max(0, last.start() - 2) : last.start()])  # of 18/2 or 2:30
    is_other = is_part or last["scale"] or last["sign"] in ("\u2013", "\uff0d")
    if is_other or (last["unit"] and not _UNIT.fullmatch(last["unit"])):
        return None
    grouped = _SPACES.sub(",", last["amount"])
    return parse_number(("-" if last["sign"] else "") + grouped)


def xmlcount(text: str) -> float:
    """Return the share of the four tags that stand exactly once, on a line of their own."""
    lines = text.split("\n")
    return sum(text.count(tag) == 1 and tag in lines for tag in TAGS) / len(TAGS)


def soft_format(text: str) -> float:
    """Return 1 for two non-empty blocks with only white space between and around them, else 0."""
    reasoning, answer = xml_tag(text, tag="reasoning"), xml_tag(text, tag="answer")
    if reasoning is None or answer is None or reasoning.end > answer.start:
        return 0.0
    around = text[: reasoning.start] + text[reasoning.end : answer.start] + text[answer.end :]
    return float(
        not around.strip() and bool(reasoning.content.strip()) and bool(answer.content.strip())
    )


def strict_format(text: str) -> float:
    """Return 1 if `soft_format` does and every tag is on a line of its own, else 0."""
    lines = (
        soft_format(text)
        and text.startswith("<reasoning>\n")
        and "\n</reasoning>\n<answer>\n" in text
    )
    return float(bool(lines) and text.rstrip("\n").endswith("\n</answer>"))


def integer(text: str) -> float:
    """Return 1 if the answer is a whole number, as those of GSM8K are, else 0."""
    value = parse_number(extract_answer(text))
    return float(value is not None and value == value.to_integral_value())


def read_answer(text: str, gold: str) -> Fraction | NoAnswer:
    """Return the number in the only answer block, or why there is none.

    Args:
        text: the completion, without its thoughts.
        gold: the right answer. A fraction such as 3/4 is a number only if this is no whole number.
    """
    block = find_tag(text, tag="answer")
    if isinstance(block, NoAnswer):
        return block
    number = parse_answer_number(block.content, fractions=Fraction(gold).denominator > 1)
    if number is None:
        return NoAnswer(f"the answer is not one number: {block.content.strip()!r:.60}")
    return number


def correctness(text: str, gold: str) -> tuple[float, str]:
    """Return 1 if the only answer block holds `gold`, else 0, and why there is no answer."""
    answer = read_answer(text, gold)
    if isinstance(answer, NoAnswer):
        return 0.0, answer.reason
    return float(same_number(answer, Fraction(gold))), ""


def lenient(text: str, gold: str) -> float:
    """Return `correctness`, or where there is no answer block whether the last number is `gold`."""
    if "<answer>" in text or "</answer>" in text:
        return correctness(text, gold)[0]
    return float(same_number(last_number(text), Decimal(gold)))
