"""Write what the processes tell each other as JSON, and read it again as it was.

Nothing that is read can name code: the types are those of the list below. A float comes back
exactly, also an infinite one and NaN.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import json
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from grpo_core.protocol.types import (
    Message,
    Reward,
    Rollout,
    Segment,
    TaskKey,
    ToolCall,
    Verdict,
)
from grpo_core.words.unasked import Unasked

_PLAIN = {bool, int, float, str, type(None)}
"""Types of JSON whose values need no look inside."""
_CLASSES: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (Message, Reward, Rollout, Segment, TaskKey, ToolCall, Unasked, Verdict)
}
_FIELDS = {kind: [field.name for field in fields(kind)] for kind in _CLASSES.values()}
_JSON_FIELDS = {(Rollout, "returned"), (ToolCall, "arguments"), (Verdict, "detail")}
"""Fields with JSON data of any depth, which somebody else has checked."""
_MANY = 16
"""As many numbers are written as bytes, which takes a tenth of the time."""
_CODES = {int: "biq", float: "d"}
"""Their types in the module `array`, the shortest first."""
_TAG = "\0"
"""The only key of an object that stands for something else than a dictionary."""


def to_json(value: Any) -> bytes:
    """Return a value as JSON text.

    Args:
        value: numbers, texts, bytes, None, paths, lists, tuples, dictionaries, and the types that
            the processes exchange.

    Raises:
        TypeError: it holds something else.
    """
    return json.dumps(_written(value), separators=(",", ":")).encode()


def from_json(text: bytes) -> Any:
    """Return the value that `to_json` wrote.

    Raises:
        ValueError: it wrote no such text.
    """
    try:
        return _read(json.loads(text))
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not a message: {error}") from None


def _written(value: Any) -> Any:
    kind = type(value)
    if isinstance(value, (bool, int, float, str)) or value is None:
        return value
    if kind is list:
        return _items(value)
    if kind is tuple:
        return {_TAG: ["tuple", _items(value)]}
    if kind in _FIELDS:
        return {_TAG: [kind.__name__, [_field(value, name) for name in _FIELDS[kind]]]}
    if isinstance(value, Mapping):
        if all(type(key) is str for key in value) and _TAG not in value:
            return {key: _written(item) for key, item in value.items()}
        return {_TAG: ["dict", [[_written(key), _written(item)] for key, item in value.items()]]}
    if kind is bytes:
        return {_TAG: ["bytes", base64.b64encode(value).decode()]}
    if isinstance(value, Path):
        return {_TAG: ["Path", str(value)]}
    raise TypeError(f"processes cannot tell each other a value of the type {kind.__name__!r}")


def _field(value: Any, name: str) -> Any:
    """Return what is written for a field of one of the types."""
    content = getattr(value, name)
    if (type(value), name) not in _JSON_FIELDS:
        return _written(content)
    return dict(content) if isinstance(content, Mapping) else content


def _items(values: Sequence[Any]) -> Any:
    """Return what is written for the items of a list or tuple, many numbers as their bytes."""
    kinds = set(map(type, values))
    if len(values) >= _MANY and kinds in ({int}, {float}):
        for code in _CODES[kinds.pop()]:
            with contextlib.suppress(OverflowError):
                return {_TAG: [code, base64.b64encode(array(code, values)).decode()]}
    return list(values) if kinds <= _PLAIN else [_written(value) for value in values]


def _numbers(code: str, content: str) -> list[Any]:
    numbers = array(code)
    numbers.frombytes(base64.b64decode(content, validate=True))
    return numbers.tolist()


def _read(data: Any) -> Any:
    if type(data) is list:
        return data if set(map(type, data)) <= _PLAIN else [_read(item) for item in data]
    if type(data) is not dict:
        return data
    if _TAG not in data:
        return {key: _read(item) for key, item in data.items()}
    name, content = data[_TAG]
    if name in _CLASSES:
        kind = _CLASSES[name]
        pairs = zip(_FIELDS[kind], content, strict=True)
        return kind(
            **{
                field: item if (kind, field) in _JSON_FIELDS else _read(item)
                for field, item in pairs
            }
        )
    return _READERS[name](content)


_READERS: dict[str, Callable[[Any], Any]] = {
    "tuple": lambda content: tuple(_read(content)),
    "dict": lambda content: {_read(key): _read(item) for key, item in content},
    "bytes": lambda content: base64.b64decode(content, validate=True),
    "Path": Path,
    **{code: functools.partial(_numbers, code) for code in "biqd"},
}
