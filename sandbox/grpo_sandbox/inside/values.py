"""Converts Python values to JSON, with tags for the types that JSON lacks.

Both sides of a jail use it.
"""

from __future__ import annotations

from typing import Any

MAX_DEPTH = 64
MAX_ERROR = 500
MAX_DIGITS = 4300
SAFE_INT = 1 << 53
INFINITY = float("inf")
TAGS: dict[type, str] = {tuple: "t", set: "s", frozenset: "z"}
TYPES: dict[str, Any] = {tag: type_ for type_, tag in TAGS.items()}


class NotPlainError(Exception):
    """A value cannot be written as JSON, or the JSON does not stand for a value."""


def encode(value: Any, depth: int = MAX_DEPTH) -> Any:
    """Return `value` as data for `json.dumps`.

    Only exact built-in types are allowed, so that no object of a program's own class leaves a jail.

    Raises:
        NotPlainError: `value` contains another type, or is nested too deeply.
    """
    if depth == 0:
        raise NotPlainError("the value is nested too deeply")
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if kind is int:
        return value if -SAFE_INT < value < SAFE_INT else {"i": _digits(value)}
    if kind is float:
        return value if -INFINITY < value < INFINITY else {"f": repr(value)}
    if kind is list:
        return [encode(item, depth - 1) for item in value]
    if kind in TAGS:
        return {TAGS[kind]: [encode(item, depth - 1) for item in value]}
    if kind is dict:
        return {
            "d": [[encode(key, depth - 1), encode(item, depth - 1)] for key, item in value.items()]
        }
    if kind is bytes:
        return {"b": value.hex()}
    raise NotPlainError(f"a {kind.__name__} is not a plain value")


def decode(data: Any, depth: int = MAX_DEPTH) -> Any:
    """Return the value that `encode` converted to `data`.

    Args:
        data: Parsed JSON from an untrusted source.

    Raises:
        NotPlainError: `encode` never writes such data.
    """
    if depth == 0:
        raise NotPlainError("the claim is nested too deeply")
    if isinstance(data, list):
        return [decode(item, depth - 1) for item in data]
    if not isinstance(data, dict):
        return data
    try:
        ((tag, body),) = data.items()
        if tag in ("i", "f"):
            return _number(tag, body)
        if tag == "b":
            return bytes.fromhex(body)
        if tag == "d":
            return {decode(key, depth - 1): decode(item, depth - 1) for key, item in body}
        return TYPES[tag](decode(item, depth - 1) for item in body)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise NotPlainError(f"the claim is not a value: {error}"[:MAX_ERROR]) from None


def _number(tag: str, text: Any) -> int | float:
    if not isinstance(text, str) or len(text) > MAX_DIGITS:
        raise ValueError("a number is not a text, or too long")
    return int(text) if tag == "i" else float(text)


def _digits(value: int) -> str:
    try:
        return str(value)
    except ValueError:
        raise NotPlainError("the number has too many digits") from None
