"""Extract answers from untrusted text; the extractors return None instead of raising.

Each takes linear time: no pattern backtracks and every parser has a size limit, because a policy in
training finds the input that makes a verifier hang.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from decimal import Decimal
from itertools import accumulate
from typing import Any, Literal

from grpo_core.calls.wire import refuse_constant, refuse_duplicates

MAX_DIGITS = 30
"""The default limit; a caller may set up to 4300, beyond which Python itself refuses to convert."""
_THINK, _THINK_END = "<think>", "</think>"
_WHITE_SPACE = " \t\r\n"
_DIGITS = frozenset("0123456789")
_GROUPED_NUMBER = re.compile(r"-?\d{1,3}(,\d{3})++(\.\d+)?", re.ASCII)
_JSON_STRING = re.compile(r'"(?:[^"\\]|\\.)*+"?', re.DOTALL)  # possessive: does not backtrack


@dataclass(frozen=True, slots=True)
class Block:
    """Holds a marked part of a text; `text[start:end]` is that part with its marks."""

    content: str
    """The text between the marks with its white space, without the indent of a fence."""
    start: int
    """The index of the first character of the opening mark."""
    end: int
    """The index after the last character of the closing mark."""
    language: str = ""
    """The word after an opening code fence, in lower case."""


@dataclass(frozen=True, slots=True)
class Json:
    """Wraps a JSON value, because `null` is a value and not a failure."""

    value: Any
    """The value."""


def answer_start(text: str) -> int:
    """Return the index at which the answer begins, behind the thoughts that the text opens with.

    What a model thinks is no answer, and a tag or fence that it mentions there is no second one.
    Thoughts end at their first closing mark; of thoughts that never end, nothing is an answer. A
    later <think> is ordinary text.
    """
    if not text.lstrip().startswith(_THINK):
        return 0
    end = text.find(_THINK_END)
    return len(text) if end < 0 else end + len(_THINK_END)


def xml_tag(text: str, *, tag: str, which: Literal["only", "last"] = "only") -> Block | None:
    """Return the block <tag>...</tag>, or None if there is none.

    The tag is case-sensitive and has no attributes. It stands behind the thoughts that the text
    opens with, see `answer_start`.

    Args:
        text: the text to search.
        tag: the name of the tag.
        which: "only" requires that both marks occur exactly once and in order, so that a policy
            cannot give many answers at once. "last" takes the last complete block, from its
            innermost opening mark.
    """
    opening, closing = f"<{tag}>", f"</{tag}>"
    if which == "only" and tag_counts(text, tag=tag) != (1, 1):
        return None
    begin = answer_start(text)
    close = text.rfind(closing, begin)
    start = text.rfind(opening, begin, max(close, begin))
    if start < 0:
        return None
    return Block(text[start + len(opening) : close], start, close + len(closing))


def tag_counts(text: str, *, tag: str) -> tuple[int, int]:
    """Return how often <tag> and </tag> occur in the text, behind the thoughts that open it."""
    begin = answer_start(text)
    return text.count(f"<{tag}>", begin), text.count(f"</{tag}>", begin)


def fenced_code(text: str, *, languages: Collection[str] = ()) -> Block | None:
    """Return the last closed block between code fences (```); None if there is none.

    A block that is never closed is a truncated answer and does not count. A fence without a
    language counts only where no block has one of the languages: it often shows the output. In a
    list, the fence's own indent is taken from the lines.

    Args:
        text: the text to search, behind the thoughts that it opens with.
        languages: the languages to accept, "" for a fence without a language; all if empty.
    """
    blocks = list(_fenced_blocks(text, answer_start(text)))
    accepted = [block for block in blocks if not languages or block.language in languages]
    labelled = [block for block in accepted if block.language] if languages else []
    chosen = labelled or accepted
    return chosen[-1] if chosen else None


def _fenced_blocks(text: str, begin: int) -> Iterator[Block]:
    """Yield the closed code blocks in order; a fence must be alone on its line.

    Args:
        text: the text.
        begin: the index from which on it is searched.
    """
    fence, language, start, content_start, indent, position = 0, "", 0, 0, 0, begin
    for line in text[begin:].split("\n"):
        stripped = line.strip(_WHITE_SPACE)
        ticks = len(stripped) - len(stripped.lstrip("`"))
        label = stripped[ticks:]
        if not fence and ticks >= 3 and "`" not in label:
            words = label.split(None, 1)
            indent = len(line) - len(line.lstrip(" "))
            fence, language, start, content_start = (
                ticks,
                words[0].lower() if words else "",
                position,
                position + len(line) + 1,
            )
        elif fence and ticks >= fence and not label:
            yield Block(
                _unindented(text[content_start : max(position - 1, content_start)], indent),
                start,
                position + len(line),
                language,
            )
            fence = 0
        position += len(line) + 1


def _unindented(content: str, indent: int) -> str:
    """Return the lines without up to `indent` leading spaces each, as CommonMark has it."""
    if not indent:
        return content
    return "\n".join(
        line[min(indent, len(line) - len(line.lstrip(" "))) :] for line in content.split("\n")
    )


def parse_integer(text: str, *, max_digits: int = MAX_DIGITS) -> int | None:
    """Return the integer that `text` consists of, or None.

    It is an optional "-" and at most `max_digits` ASCII digits, leading zeros among them: "007" is
    7. Spaces, tabs and line ends around it are allowed.
    """
    text = text.strip(_WHITE_SPACE)
    return int(text) if _all_digits(text.removeprefix("-"), max_digits) else None


def parse_decimal(text: str, *, max_digits: int = MAX_DIGITS) -> Decimal | None:
    """Return the plain decimal number that `text` consists of, or None.

    It has the form that `parse_integer` accepts, with an optional "." between digits; ".5", "5.",
    an exponent, NaN and infinity are refused. `max_digits` limits the digits before and after the
    "." together. "1.500" equals "1.5"; compare texts where the number of digits counts.
    """
    text = text.strip(_WHITE_SPACE)
    whole, point, fraction = text.removeprefix("-").partition(".")
    if not _all_digits(whole, max_digits) or (
        point and not _all_digits(fraction, max_digits - len(whole))
    ):
        return None
    return Decimal(text)


def ungrouped(text: str) -> str:
    """Remove the commas between thousands from a number, for the parsers above: "1,080" to "1080".

    A text with commas anywhere else is returned unchanged, so that no parser reads a list such as
    "1,8" as a number.
    """
    return text.replace(",", "") if _GROUPED_NUMBER.fullmatch(text) else text


def _all_digits(text: str, max_digits: int) -> bool:
    """Return whether `text` consists of 1 to `max_digits` ASCII digits."""
    return 0 < len(text) <= max_digits and _DIGITS.issuperset(text)


def parse_json(
    text: str, *, max_chars: int = 100_000, max_depth: int = 32, max_digits: int = 300
) -> Json | None:
    """Parse the whole text as one JSON value.

    Returns:
        The value; None if the text is not JSON, exceeds a limit, or contains something that JSON
        does not define: NaN, Infinity, a number that overflows, the same key twice (parsers
        disagree on which one counts), or half of a surrogate pair, which is not a character and
        cannot be written as UTF-8.
    """
    if len(text) > max_chars or _bracket_depth(text) > max_depth:
        return None

    def parse_float(digits: str) -> float:
        if len(digits) > max_digits or not math.isfinite(value := float(digits)):
            raise ValueError(digits)
        return value

    def parse_int(digits: str) -> int:
        if len(digits) > max_digits:
            raise ValueError(digits)
        return int(digits)

    try:
        value = json.loads(
            text,
            parse_float=parse_float,
            parse_int=parse_int,
            parse_constant=refuse_constant,
            object_pairs_hook=refuse_duplicates,
        )
        # Refuse half surrogate pairs in keys and strings at any depth, also those from escapes.
        json.dumps(value, ensure_ascii=False).encode()
    except ValueError:
        return None
    return Json(value)


def _bracket_depth(text: str) -> int:
    """Return how deep brackets nest outside strings, to check it before the parser recurses."""
    steps = ((char in "[{") - (char in "]}") for char in _JSON_STRING.sub("", text))
    return max(accumulate(steps, initial=0))


def is_text(value: str) -> bool:
    """Return whether the string can be encoded as UTF-8.

    Half of a surrogate pair ("\\ud800", from JSON or a terminal) cannot be encoded, and tokenizers
    raise an exception for it.
    """
    return value.encode(errors="ignore").decode() == value
