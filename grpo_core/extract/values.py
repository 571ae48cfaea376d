"""Find and parse JSON in untrusted text."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Any

from grpo_core.calls.wire import refuse_constant, refuse_duplicates
from grpo_core.extract.blocks import Block, NoAnswer
from grpo_core.extract.fences import fenced_blocks, labelled_first, why_no_block

JSON_LABELS = ("json", "jsonc", "json5", "")
_JSON_STRING = re.compile(r'"(?:[^"\\]|\\.)*+"?', re.DOTALL)  # possessive: does not backtrack
_BRACKET = re.compile(r"[\[{]")
_INSIDE = re.compile(r'"(?:[^"\\\n]|\\[^\n])*+"|\\["\\]|[\[\]{}]')
"""A string on one line, an escaped quote or backslash, or a bracket.

A quote that nothing closes is no string. Those behind it in its line are escaped, so they are
passed over and the rest of the line is not searched again from each of them."""


@dataclass(frozen=True, slots=True)
class Json:
    """Wraps a JSON value, because `null` is a value and not a failure."""

    value: Any
    """The value."""


def find_json(text: str, *, languages: Collection[str] = JSON_LABELS) -> Block | NoAnswer:
    """Return the text of the JSON list or object that is the answer, or why there is none.

    Of the blocks between code fences, the last one counts whose first character is [ or {; labelled
    ones go first, as for `find_code`. Where there is no block, a list or object in the text counts
    if it is the only one. Whether it is valid JSON is never asked: `parse_json` tells.

    Args:
        text: the text to search.
        languages: the labels to accept, "" for a fence without one.
    """
    fenced = fenced_blocks(text)
    candidates = labelled_first(fenced.closed, languages)
    fitting = [block for block in candidates if block.content.lstrip()[:1] in ("[", "{")]
    if fitting:
        return fitting[-1]
    if candidates:
        return NoAnswer("looked for JSON: no block between code fences begins with [ or {")
    if fenced.is_cut:
        return NoAnswer(why_no_block(text, fenced, languages))
    values = list(islice(_bare_values(text, fenced.closed), 2))
    if len(values) == 1:
        return values[0]
    if values:
        what = "several texts stand in brackets; put the answer between ```json and ```"
    else:
        what = "there is no list and no object" if text.strip() else "the text is empty"
    return NoAnswer(f"looked for JSON: {what}")


def _bare_values(text: str, blocks: Sequence[Block]) -> Iterator[Block]:
    """Yield the texts in brackets outside of blocks; the last one may be cut off.

    Args:
        text: the text.
        blocks: its blocks between code fences, in order.
    """
    position = 0
    for end, next_position in (*((block.start, block.end) for block in blocks), (len(text), 0)):
        while opening := _BRACKET.search(text, position, end):
            close = _closing(text, opening.start(), end)
            yield Block(text[opening.start() : close], opening.start(), close)
            position = close
        position = next_position


def _closing(text: str, start: int, end: int) -> int:
    """Return the index behind the bracket that closes the one at `start`; `end` if none does."""
    depth = 0
    for match in _INSIDE.finditer(text, start, end):
        depth += match.group() in ("[", "{")
        depth -= match.group() in ("]", "}")
        if not depth:
            return match.end()
    return end


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
