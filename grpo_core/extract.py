"""Takes answers out of untrusted text: one bounded extractor each, in linear time, that answers None instead of raising.

There is no pattern that backtracks and no parser without a cap, because a policy under training finds the input that hangs a verifier.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from decimal import Decimal
from itertools import accumulate
from typing import Any, Literal, NoReturn

MAX_DIGITS = 30  # a caller may ask for up to 4300, where Python itself stops converting
_SPACE = " \t\r\n"
_DIGITS = frozenset("0123456789")
_GROUPED = re.compile(r"-?\d{1,3}(,\d{3})++(\.\d+)?", re.ASCII)
_STRING = re.compile(r'"(?:[^"\\]|\\.)*+"?', re.DOTALL)  # possessive, so that it does not backtrack


@dataclass(frozen=True, slots=True)
class Block:
    """A marked part of a text. content: what stands between the marks, untouched; text[start:end]: the part with its marks.

    language: the word after an opening code fence, in lower case.
    """

    content: str
    start: int
    end: int
    language: str = ""


@dataclass(frozen=True, slots=True)
class Json:
    """A JSON value; wrapped, because `null` is a value and not a failure."""

    value: Any


def xml_tag(text: str, *, tag: str, which: Literal["only", "last"] = "only") -> Block | None:
    """The content of <tag>...</tag>, case-sensitive and without attributes.

    "only": both marks stand in the text exactly once, in order, so a policy cannot spray answers. "last": the last complete block,
    from its innermost opening mark.
    """
    opening, closing = f"<{tag}>", f"</{tag}>"
    if which == "only" and tag_counts(text, tag=tag) != (1, 1):
        return None
    close = text.rfind(closing)
    start = text.rfind(opening, 0, max(close, 0))
    if start < 0:
        return None
    return Block(text[start + len(opening) : close], start, close + len(closing))


def tag_counts(text: str, *, tag: str) -> tuple[int, int]:
    """How often <tag> and </tag> stand in the text."""
    return text.count(f"<{tag}>"), text.count(f"</{tag}>")


def fenced_code(text: str, *, languages: Collection[str] = ()) -> Block | None:
    """The last closed block between ``` fences, of one of `languages` if any are given ("" stands for a fence without a language).

    A block that is never closed is a truncated answer and does not count.
    """
    last = None
    for block in _fenced_blocks(text):
        if not languages or block.language in languages:
            last = block
    return last


def _fenced_blocks(text: str) -> Iterator[Block]:
    fence, language, start, content_start, position = 0, "", 0, 0, 0
    for line in text.split("\n"):
        stripped = line.strip(_SPACE)
        ticks = len(stripped) - len(stripped.lstrip("`"))
        label = stripped[ticks:]
        if not fence and ticks >= 3 and "`" not in label:
            words = label.split(None, 1)
            fence, language, start, content_start = (
                ticks,
                words[0].lower() if words else "",
                position,
                position + len(line) + 1,
            )
        elif fence and ticks >= fence and not label:
            yield Block(
                text[content_start : max(position - 1, content_start)],
                start,
                position + len(line),
                language,
            )
            fence = 0
        position += len(line) + 1


def parse_integer(text: str, *, max_digits: int = MAX_DIGITS) -> int | None:
    """An integer and nothing else: an optional "-", then at most `max_digits` ASCII digits, white space around it allowed."""
    text = text.strip(_SPACE)
    return int(text) if _all_digits(text.removeprefix("-"), max_digits) else None


def parse_decimal(text: str, *, max_digits: int = MAX_DIGITS) -> Decimal | None:
    """A plain decimal number and nothing else: as `parse_integer`, with an optional "." between digits; no exponent, NaN or infinity."""
    text = text.strip(_SPACE)
    whole, point, fraction = text.removeprefix("-").partition(".")
    if not _all_digits(whole, max_digits) or (
        point and not _all_digits(fraction, max_digits - len(whole))
    ):
        return None
    return Decimal(text)


def ungrouped(text: str) -> str:
    """A number without the "," between its thousands, for the parsers above: 1,080 becomes 1080. A text whose commas stand anywhere else
    stays as it is, so that no parser takes a list like "1,8" for a number."""
    return text.replace(",", "") if _GROUPED.fullmatch(text) else text


def _all_digits(text: str, max_digits: int) -> bool:
    return 0 < len(text) <= max_digits and _DIGITS.issuperset(text)


def parse_json(
    text: str, *, max_chars: int = 100_000, max_depth: int = 32, max_digits: int = 300
) -> Json | None:
    """The whole text as one JSON value. None if it is no JSON, is larger or deeper than allowed, or says what JSON does not define:
    NaN, Infinity, a number that overflows, the same key twice (parsers disagree on which one counts), half of a surrogate pair, which is
    no character and cannot be written as UTF-8."""
    if len(text) > max_chars or _depth(text) > max_depth:
        return None

    def number(digits: str) -> float:
        if len(digits) > max_digits or not math.isfinite(value := float(digits)):
            raise ValueError(digits)
        return value

    def integer(digits: str) -> int:
        if len(digits) > max_digits:
            raise ValueError(digits)
        return int(digits)

    try:
        value = json.loads(
            text,
            parse_float=number,
            parse_int=integer,
            parse_constant=_refuse_constant,
            object_pairs_hook=_refuse_duplicates,
        )
        json.dumps(
            value, ensure_ascii=False
        ).encode()  # keys and strings at any depth; escapes are characters here
    except ValueError:
        return None
    return Json(value)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("duplicate key")
    return value


def _depth(text: str) -> int:
    """How deep brackets nest outside of strings: known before the parser recurses."""
    return max(
        accumulate(((char in "[{") - (char in "]}") for char in _STRING.sub("", text)), initial=0)
    )


def is_text(value: str) -> bool:
    """Whether it can be encoded: half of a surrogate pair ("\\ud800", from JSON or a terminal) cannot, and tokenizers raise for it."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
