"""Read the reference answers of a row, and compare answers with them."""

from __future__ import annotations

import datetime
import json
import math
import re
import unicodedata
from decimal import Decimal
from fractions import Fraction
from numbers import Real
from typing import Any

from grpo_core.extract import (
    finite_number,
    parse_answer_number,
    parse_decimal,
    same_number,
    ungrouped,
)
from grpo_env_dataset.rows import BadRowError, Row, value_at

_INVISIBLE = frozenset({"Cc", "Cf", "Zs", "Zl", "Zp"})
"""Categories of characters of which a text without any other is empty to a reader."""
_UNSEEN = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0").union(
    map(chr, (*range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)))
)
"""Characters of other categories that cannot be seen: fillers, and selectors of a variant."""


class BadAnswerError(BadRowError):
    """A row has no reference answer that could be compared."""

    advice = ""
    """What to do; "": what helps with most rows."""
    is_of_pattern = False
    """It has an answer, in which `answer_pattern` finds nothing."""


class BadPatternError(BadAnswerError):
    """A row has an answer, in which `answer_pattern` finds nothing."""

    is_of_pattern = True


class NoNumberError(BadAnswerError):
    """The answer of a row is not a number."""


USUAL_FIELDS = (
    "answer",
    "ground_truth",
    "reference_answer",
    "final_answer",
    "target",
    "label",
    "answerKey",
    "solution",
    "output",
    "response",
    "reward_model.ground_truth",
    "extra_info.answer",
)
"""The fields that hold the reference answer in most data sets, the likeliest first."""


TESTS = ("tests", "test_list", "test", "asserts", "test_cases")
"""The fields that hold the tests in most data sets."""
RUBRICS = ("rubric", "rubrics", "criteria", "grading_notes")
"""The fields that hold the rubric in most data sets."""


def answers_of(row: Row, *, field: str, pattern: str, objects: bool = False) -> tuple[str, ...]:
    """Return the reference answers of a row, of which any may be given; at least one.

    Args:
        row: the row.
        field: the field that holds a text, a number, a bool or a list of these.
        pattern: a regular expression with a group, which cuts the answer out; "": all of it.
        objects: whether an answer may be an object, which is written as JSON.

    Raises:
        BadAnswerError: there is none, or one of them is empty.
    """
    try:
        value, name = value_at(row, field), f"the field {field!r}"
    except KeyError:
        raise BadAnswerError(
            f"there is no field {field!r}", f"the row has {', '.join(row) or 'none'}"
        ) from None
    if objects and isinstance(value, dict):
        return (json.dumps(value),)
    if not isinstance(value, list | tuple):
        return (_answer(value, name, pattern),)
    if not value:
        raise BadAnswerError(f"{name} is an empty list")
    if any(isinstance(item, list | tuple) for item in value):
        raise BadAnswerError(f"{name} is a list of lists")
    return tuple(_answer(item, f"an item of {name}", pattern) for item in value)


def _answer(value: Any, name: str, pattern: str) -> str:
    """Return one reference answer; `name` is what the message calls it."""
    text = _text(value, name).strip()
    if is_blank(text):
        raise BadAnswerError(f"{name} is empty")
    if not pattern:
        return text
    match = re.search(pattern, text)
    if match is None or match.group(1) is None or is_blank(match.group(1)):
        raise BadPatternError(
            f"env.answer_pattern {pattern!r} finds nothing in {name}", f"{text!r:.60}"
        )
    return match.group(1).strip()


def _text(value: Any, name: str) -> str:
    """Return a value as the text that is compared; true and false are written as in JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Real | Decimal):
        if finite_number(value) is None:
            raise BadAnswerError(f"{name} is {_describe_odd(value)}")
        return format(value, "f") if isinstance(value, Decimal) else str(value)
    if isinstance(value, datetime.date | datetime.time):
        return str(value)
    kinds = {dict: "an object", type(None): "null"}
    kind = kinds.get(type(value), f"of the type {type(value).__name__}")
    raise BadAnswerError(f"{name} is {kind}")


def _describe_odd(value: Real | Decimal) -> str:
    """Return what a number is that `finite_number` refuses."""
    if isinstance(value, Decimal):
        is_nan, is_infinite = value.is_nan(), value.is_infinite()
    else:
        is_nan, is_infinite = value != value, value in (math.inf, -math.inf)
    return "NaN" if is_nan else "infinite" if is_infinite else "a number of thousands of digits"


def is_blank(text: str) -> bool:
    """Return whether a text has nothing that can be seen, also if it has characters."""
    return all(
        character in _UNSEEN or unicodedata.category(character) in _INVISIBLE for character in text
    )


def is_same_text(answer: str, reference: str) -> bool:
    """Return whether two texts are the same, white space, case and composition of letters aside."""
    answer, wanted = " ".join(answer.split()), _folded(" ".join(reference.split()))
    # Folding never makes a text shorter. Folding the marks of 1 MB takes a time that is quadratic.
    return len(answer) <= len(wanted) and _folded(answer) == wanted


def _folded(text: str) -> str:
    """Return the form in which texts are equal that Unicode calls a canonical caseless match."""
    decomposed = unicodedata.normalize("NFD", text)
    return unicodedata.normalize("NFD", decomposed.casefold())


def read_number(answer: str, reference: str) -> Fraction | None:
    """Return the number in an answer; None if it is not one number.

    Args:
        answer: the answer.
        reference: the right one. A fraction such as 3/4 is a number only if this is not whole.
    """
    return parse_answer_number(answer, fractions=_value(reference).denominator > 1)


def is_same_number(answer: str, reference: str) -> bool:
    """Return whether an answer is the same number as a reference, which is a decimal number."""
    return same_number(read_number(answer, reference), _value(reference))


def _value(reference: str) -> Fraction:
    right = parse_decimal(ungrouped(reference))
    if right is None:
        raise ValueError(f"the reference {reference!r} is not a number")
    return Fraction(right)
