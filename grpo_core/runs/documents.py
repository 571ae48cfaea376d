"""Parse JSON that a stranger may have written, with bounds on its size, depth and memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from grpo_core.protocol.errors import ConfigError
from grpo_core.runs.files import LINE_BYTES, UnsafeFileError, read_whole

CONFIG_BYTES = 16 << 20
"""The most bytes of config.json."""
DEEPEST = 500
"""The most levels of lists and objects: fewer than Python's functions may be nested."""
_SMALL_BYTES = 8 << 20
"""Text of this size is parsed whatever it is made of; it takes 300 MB at worst."""
_MOST_MEMORY = 400 << 20
_CONTAINER_BYTES, _VALUE_BYTES = 90, 34
"""What an empty list or object takes in memory, and what a number in a list does."""

_CONTAINERS = (dict, list, tuple)


def parse_json(data: bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: it is not JSON, is nested too deeply, or would take too much memory.
    """
    if is_too_large(data):
        raise ValueError("it has too many values")
    try:
        value = json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if data.count(b"[") + data.count(b"{") > DEEPEST and is_deeper(value, DEEPEST):
        raise ValueError(f"it is nested more than {DEEPEST} levels deep")
    return value


def is_too_large(data: bytes) -> bool:
    """Return whether a JSON text could take more memory than is given to one line."""
    if len(data) <= _SMALL_BYTES:
        return False
    width = 1 if data.isascii() else 4  # bytes of a character of Python's texts
    containers = data.count(b"[") + data.count(b"{")
    memory = 2 * width * len(data) + _CONTAINER_BYTES * containers + _VALUE_BYTES * data.count(b",")
    return len(data) > LINE_BYTES or memory > _MOST_MEMORY


def is_deeper(value: Any, levels: int) -> bool:
    """Return whether lists and objects are nested more than so many levels deep."""
    layer = [value] if isinstance(value, _CONTAINERS) else []
    for _ in range(levels):
        layer = [
            item
            for container in layer
            for item in (container.values() if isinstance(container, dict) else container)
            if isinstance(item, _CONTAINERS)
        ]
        if not layer:
            return False
    return True


def read_document(path: Path, *, most_bytes: int = LINE_BYTES, below: Path | None = None) -> Any:
    """Return the value of a JSON file; a byte order mark, as editors write, is allowed.

    Args:
        path: the file.
        most_bytes: a larger file is refused.
        below: as for `files.open_to_read`.

    Raises:
        OSError: it cannot be read, is not a regular file, or is too large.
        ValueError: it is not JSON, is nested too deeply, or has too many values.
    """
    return parse_json(read_whole(path, most_bytes=most_bytes, below=below))


def refuse_no_document(path: Path, kind: str) -> None:
    """Refuse a file that the user names if reading it would wait, or not end; links are followed.

    Args:
        path: the file; whether it exists is not asked here.
        kind: what the message calls it.

    Raises:
        ConfigError: it is not a regular file, or is too large for settings.
    """
    try:
        read_whole(path.resolve(), most_bytes=CONFIG_BYTES)
    except UnsafeFileError as error:
        raise ConfigError(
            f"the {kind} {path} cannot be read: {error.strerror}; name another"
        ) from None
    except (OSError, RuntimeError, ValueError):
        return
