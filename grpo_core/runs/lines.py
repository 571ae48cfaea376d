"""Read and write JSON lines: whole lines only, errors that name the file, only finite numbers."""

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
_NO_SPACE_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_PERMISSION_ERRORS = {errno.EACCES, errno.EPERM, errno.EROFS}


def append_line(path: Path, line: str) -> bytes:
    """Append one line in a single write, completely or not at all.

    Returns:
        The bytes that were written, including the line feed.

    Raises:
        RunStoppedError: the line cannot be written.
    """
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
    # Only a regular file can be truncated. The error to report is that of the write, not this one.
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, size)


@contextlib.contextmanager
def writing(path: Path, *, then: str = "continue with --resume") -> Iterator[None]:
    """Turn an OSError in the block into a RunStoppedError that says what to do.

    Args:
        path: the file or folder that the block writes, for the message.
        then: what the user should do once it can be written, for the message.

    Raises:
        RunStoppedError: the block raised OSError.
    """
    try:
        yield
    except OSError as error:
        message = (
            f"{path} cannot be written: {error.strerror or error}; {_remedy(error)}, then {then}"
        )
        raise RunStoppedError(message) from None


def _remedy(error: OSError) -> str:
    """Return what the user can do about a failed write."""
    if error.errno in _PERMISSION_ERRORS:
        return "make it writable for this user"
    if error.errno in _NO_SPACE_ERRORS or error.errno is None:
        return "make room"
    return "check the disk"


def read_lines(path: Path) -> Iterator[JsonObject]:
    """Yield the objects of a .jsonl file; yield nothing if the file does not exist.

    A last line without a line feed, as a killed process may leave it, is skipped.

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
    lines: Iterable[bytes], path: Path, prefixes: tuple[bytes, ...] = (b"",)
) -> Iterator[JsonObject]:
    """Yield the JSON object of each complete line that starts with one of the prefixes.

    Args:
        lines: the lines of the file; one without a line feed is skipped.
        path: the file, for the message.
        prefixes: lines that start otherwise are skipped without being parsed.

    Raises:
        ConfigError: a line is damaged.
    """
    for number, line in enumerate(lines, 1):
        if not line.endswith(b"\n") or not line.startswith(prefixes):
            continue
        if (value := parse_line(line)) is None:
            raise ConfigError(
                f"{path}, line {number} is damaged: it is not a JSON object; "
                "remove the line, or name another run"
            )
        yield value


def parse_line(line: bytes) -> JsonObject | None:
    """Return the JSON object of a line, or None if the line is not one."""
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
    """Return a copy of the value in which None replaces NaN and infinities, which JSON lacks."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
