"""Finds the list of blocks in the text of an answer: bounded, in linear time, and without an exception for any text."""

from __future__ import annotations

import json
import re
from typing import Any

from grpo_core.extract import parse_json
from grpo_env_besiege.tree import Fault

MAX_CHARS = 40_000
MAX_DEPTH = 4
_OPENING, _CLOSING = "```json", "```"
_WORDS = {"True": "true", "False": "false", "None": "null"}
_TOKEN = re.compile(
    r"""(?P<text>'[^'\\\n]{0,80}'|"[^"\\\n]{0,80}")|(?P<number>-?\d{1,20})|(?P<word>True|False|None)"""
    r"""|(?P<mark>[\[\]{}:])|(?P<open>\()|(?P<close>\))|(?P<comma>,)|(?P<skip>\s+|\#[^\n]*)""",
    re.ASCII,
)


def read_entries(text: str) -> tuple[list[dict[str, Any]], tuple[Fault, ...]]:
    """The first ```json block, or the whole text if there is none, as JSON or else as a Python literal."""
    if len(text) > MAX_CHARS:
        return [], (
            Fault("file", f"the answer has {len(text)} characters; at most {MAX_CHARS} are read"),
        )
    content = _content(text)
    if content is None:
        return [], (Fault("file", "a block that begins with ```json is never closed by ```"),)
    parsed = parse_json(content, max_depth=MAX_DEPTH) or parse_json(
        _as_json(content), max_depth=MAX_DEPTH
    )
    if parsed is None:
        return [], (
            Fault(
                "file",
                "no JSON could be read: write the list of blocks as JSON between ```json and ```",
            ),
        )
    found = parsed.value
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        return [], (
            Fault(
                "file",
                f"the JSON has to be a list of objects, one for each block; found {_kind(found)}",
            ),
        )
    if not found:
        return [], (Fault("file", "the list of blocks is empty; it begins with the root"),)
    return found, ()


def _content(text: str) -> str | None:
    """None if the block is not closed. The original takes the first block and needs no line of its own for the marks, so neither do we."""
    before, opening, after = text.partition(_OPENING)
    content, closing, _ = after.partition(_CLOSING)
    if not opening:
        return before.strip()
    return content.strip() if closing else None


def _as_json(text: str) -> str:
    """A Python literal of lists, tuples, dicts, short strings and whole numbers in JSON's spelling; "" for anything else."""
    found: list[str] = []
    position = 0
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            return ""
        position = token.end()
        kind, part = token.lastgroup, token.group()
        if kind in ("close", "mark") and part in ")]}" and found[-1:] == [","]:
            found.pop()
        if kind == "text":
            found.append(json.dumps(part[1:-1]))
        elif kind != "skip":
            found.append({"open": "[", "close": "]"}.get(kind or "", _WORDS.get(part, part)))
    return "".join(found)


def _kind(value: object) -> str:
    if isinstance(value, list):
        odd = next(number for number, entry in enumerate(value) if not isinstance(entry, dict))
        return f"an entry that is none, number {odd}"
    return {dict: "a single object", str: "a text", bool: "true or false", type(None): "null"}.get(
        type(value), "a number"
    )
