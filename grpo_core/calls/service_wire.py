"""Define how calls of services travel between an episode in a worker and the process with them.

A call names a service, a method and its arguments, as JSON; bytes are written in base64. Whoever
receives data checks the type of every value.
"""

from __future__ import annotations

import base64
import contextlib
import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from grpo_core.protocol.errors import ConfigError, GrpoError, SandboxError

T = TypeVar("T")
Files = Mapping[str, str | bytes]
METHODS: Mapping[tuple[str, str], frozenset[str]] = {
    ("sandbox", "run"): frozenset({"name", "programs"}),
    ("sandbox", "session"): frozenset({"name", "files", "image", "limits", "socket"}),
    ("session", "exec"): frozenset({"handle", "command", "input", "timeout", "of_policy"}),
    ("session", "write"): frozenset({"handle", "files"}),
    ("session", "read"): frozenset({"handle", "path", "limit"}),
    ("session", "close"): frozenset({"handle"}),
    ("judge", "judge"): frozenset({"name", "requests"}),
}
"""The arguments of each method that an episode in a worker may call, by service and method."""
_ERRORS: Mapping[str, type[Exception]] = {
    "SandboxError": SandboxError,
    "ConfigError": ConfigError,
    "ValueError": ValueError,
}
"""The exceptions that the protocol of services names; any other becomes a GrpoError."""


class BadValueError(Exception):
    """The other side sent what is no valid call or result; the message says what."""


def pack(value: Any) -> Any:
    """Return a value as JSON data: dataclasses and mappings as objects, sequences as lists."""
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: pack(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {key: pack(item) for key, item in value.items()}
    return [pack(item) for item in value] if isinstance(value, list | tuple) else value


def unpack(kind: type[T], data: object) -> T:
    """Return the dataclass whose fields are in `data`.

    Raises:
        BadValueError: a field is missing, unknown or of another type.
    """
    if not isinstance(data, dict):
        raise BadValueError(f"{kind.__name__} is not an object")
    hints = get_type_hints(kind)
    names = {each.name for each in fields(kind)}  # type: ignore[arg-type]
    if data.keys() != names:
        raise BadValueError(f"{kind.__name__} has other fields: {sorted(data.keys() ^ names)}")
    return kind(**{name: typed(value, hints[name], name) for name, value in data.items()})


def unpack_list(kind: type[T], data: object) -> list[T]:
    """Return the dataclasses of a list; see `unpack`."""
    if not isinstance(data, list):
        raise BadValueError(f"the list of {kind.__name__} is not a list")
    return [unpack(kind, item) for item in data]


def typed(value: Any, hint: Any, name: str) -> Any:  # noqa: C901 - a kind of type after the other
    """Return a value of JSON data if it has the type that a hint names; dataclasses are built.

    Raises:
        BadValueError: it does not.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if is_dataclass(hint) and isinstance(hint, type):
        return unpack(hint, value)
    if origin in (Union, types.UnionType):
        for option in arguments:
            try:
                return typed(value, option, name)
            except BadValueError:
                continue
    elif origin is Literal and value in arguments and isinstance(value, str):
        return value
    elif isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(value, dict):
        return {key: typed(item, arguments[1], name) for key, item in value.items()}
    elif isinstance(origin, type) and issubclass(origin, Sequence) and isinstance(value, list):
        return [typed(item, arguments[0], name) for item in value]
    elif hint is float:
        if type(value) in (int, float) and math.isfinite(value):
            return value
    elif hint is Any or (isinstance(hint, type) and type(value) is hint):
        return value
    raise BadValueError(f"{name} is {type(value).__name__}, not {hint}")


def pack_files(files: Files) -> dict[str, Any]:
    """Return files as JSON data."""
    return {path: pack_content(content) for path, content in files.items()}


def unpack_files(data: object) -> dict[str, str | bytes]:
    """Return the files that `pack_files` packed; raise BadValueError for anything else."""
    if not isinstance(data, dict):
        raise BadValueError("the files are not an object")
    return {path: unpack_content(content) for path, content in data.items()}


def pack_content(content: str | bytes) -> Any:
    """Return the content of a file as JSON data: text as it is, bytes in base64."""
    if isinstance(content, str):
        return content
    return {"base64": base64.b64encode(content).decode("ascii")}


def unpack_content(data: object) -> str | bytes:
    """Return the content that `pack_content` packed; raise BadValueError for anything else."""
    if isinstance(data, str):
        return data
    if isinstance(data, dict) and data.keys() == {"base64"} and isinstance(data["base64"], str):
        with contextlib.suppress(ValueError):
            return base64.b64decode(data["base64"], validate=True)
    raise BadValueError("the content of a file is neither text nor base64")


def pack_error(error: Exception, text: str) -> dict[str, str]:
    """Return an exception of a service as JSON data, with its message."""
    names = [name for name, kind in _ERRORS.items() if isinstance(error, kind)]
    return {"kind": names[0] if names else "GrpoError", "text": text}


def unpack_error(data: Mapping[str, str]) -> Exception:
    """Return the exception that `pack_error` packed."""
    return _ERRORS.get(data["kind"], GrpoError)(data["text"])
