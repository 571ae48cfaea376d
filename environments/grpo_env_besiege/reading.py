"""Finds the list of blocks in a completion.

For every text this takes bounded, linear time and raises no exception.
"""

from __future__ import annotations

import json
import re
from typing import Any

from grpo_core.extract import JSON_LABELS, NoAnswer, find_json, parse_json
from grpo_env_besiege.tree import MachineFault

MAX_CHARS = 40_000
MAX_DEPTH = 4
LANGUAGES = (*JSON_LABELS, "python", "py")
_WORDS = {"True": "true", "False": "false", "None": "null"}
_TOKEN = re.compile(
    r"""(?P<text>'[^'\\\n]{0,80}'|"[^"\\\n]{0,80}")|(?P<number>-?\d{1,20})"""
    r"""|(?P<word>True|False|None)"""
    r"""|(?P<mark>[\[\]{}:])|(?P<open>\()|(?P<close>\))|(?P<comma>,)|(?P<skip>\s+|\#[^\n]*)""",
    re.ASCII,
)


def read_entries(text: str) -> tuple[list[dict[str, Any]], tuple[MachineFault, ...]]:
    """Read the list of blocks of the machine; `find_json` says where it stands.

    It may be JSON or a Python literal. The original reads the first ```json block.

    Returns:
        The blocks and (), or [] and the faults.
    """
    if len(text) > MAX_CHARS:
        return [], (
            MachineFault(
                "file", f"the answer has {len(text)} characters; at most {MAX_CHARS} are read"
            ),
        )
    block = find_json(text, languages=LANGUAGES)
    if isinstance(block, NoAnswer):
        return [], (MachineFault("file", block.reason),)
    content = block.content.strip()
    parsed = parse_json(content, max_depth=MAX_DEPTH) or parse_json(
        _as_json(content), max_depth=MAX_DEPTH
    )
    if parsed is None:
        return [], (
            MachineFault(
                "file",
                "the answer is not valid JSON: write the list of blocks between ```json and ```",
            ),
        )
    entries = parsed.value
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        return [], (
            MachineFault(
                "file",
                "the JSON has to be a list of objects, one for each block; "
                f"found {_describe_kind(entries)}",
            ),
        )
    if not entries:
        return [], (MachineFault("file", "the list of blocks is empty; it begins with the root"),)
    return entries, ()


def _as_json(text: str) -> str:
    """Rewrite a Python literal as JSON.

    Returns:
        The JSON text of a literal of lists, tuples, dicts, short strings and whole numbers; "" for
        anything else.
    """
    parts: list[str] = []
    position = 0
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            return ""
        position = token.end()
        kind, part = token.lastgroup, token.group()
        if kind in ("close", "mark") and part in ")]}" and parts[-1:] == [","]:
            parts.pop()
        if kind == "text":
            parts.append(json.dumps(part[1:-1]))
        elif kind != "skip":
            parts.append({"open": "[", "close": "]"}.get(kind or "", _WORDS.get(part, part)))
    return "".join(parts)


def _describe_kind(value: object) -> str:
    if isinstance(value, list):
        odd = next(number for number, entry in enumerate(value) if not isinstance(entry, dict))
        return f"an entry that is none, number {odd}"
    return {dict: "a single object", str: "a text", bool: "true or false", type(None): "null"}.get(
        type(value), "a number"
    )
