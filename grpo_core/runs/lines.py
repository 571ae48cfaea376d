"""Reads and writes JSON lines: whole lines, errors that name the file, numbers that JSON has."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from grpo_core.protocol.errors import ConfigError, RunStoppedError

JsonObject = dict[str, Any]
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}


def append_line(path: Path, line: str) -> bytes:
    """Append one line in one write, or nothing of it; return the bytes that were written."""
    data = line.encode("utf-8", "backslashreplace") + b"\n"
    with writing(path), path.open("ab", buffering=0) as file:
        size = file.tell()
        try:
            written = file.write(data)
        except OSError:
            _truncate(file.fileno(), size)
            raise
        if written != len(data):
            _truncate(file.fileno(), size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return data


def _truncate(descriptor: int, size: int) -> None:
    with contextlib.suppress(
        OSError
    ):  # it is no regular file; why the write failed is what matters
        os.ftruncate(descriptor, size)


@contextlib.contextmanager
def writing(path: Path, *, then: str = "continue with --resume") -> Iterator[None]:
    """Turn a failed write in the block into RunStoppedError.

    Args:
        path: what is written, for the message.
        then: what to do once it can be written.
    """
    try:
        yield
    except OSError as error:
        message = (
            f"{path} cannot be written: {error.strerror or error}; {_remedy(error)}, then {then}"
        )
        raise RunStoppedError(message) from None


def _remedy(error: OSError) -> str:
    if error.errno in _FORBIDDEN:
        return "make it writable for this user"
    if error.errno in _FULL or error.errno is None:
        return "make room"
    return "check the disk"


def read_lines(path: Path) -> Iterator[JsonObject]:
    """Yield the objects of a .jsonl file; a last line that a kill cut is left out.

    Raises:
        ConfigError: a line is damaged, or the file cannot be read.
    """
    if not path.exists():
        return
    try:
        with path.open("rb") as file:
            yield from parse_lines(file, path)
    except OSError as error:
        raise ConfigError(unreadable(path, error)) from None


def parse_lines(
    lines: Iterable[bytes], path: Path, beginnings: tuple[bytes, ...] = (b"",)
) -> Iterator[JsonObject]:
    """Yield the object of each whole line that begins so; raise ConfigError for a damaged one."""
    for number, line in enumerate(lines, 1):
        if not line.endswith(b"\n") or not line.startswith(beginnings):
            continue
        if (value := parse_line(line)) is None:
            raise ConfigError(
                f"{path}, line {number} is damaged: it is not a JSON object; remove the line, or name another run"
            )
        yield value


def parse_line(line: bytes) -> JsonObject | None:
    """Return the object of a line, or None if there is none in it."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def unreadable(path: Path, error: Exception) -> str:
    """Return the message for a file that cannot be read."""
    reason = getattr(error, "strerror", None) or error
    advice = (
        "make it readable for this user" if isinstance(error, PermissionError) else "restore it"
    )
    return f"{path} cannot be read: {reason}; {advice}, or name another run"


def finite(value: Any) -> Any:
    """Return the value with None in place of numbers that JSON does not have: NaN, infinities."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
