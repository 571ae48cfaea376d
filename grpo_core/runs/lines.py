"""JSON lines and writing in general: whole lines, errors by their name, numbers that JSON has."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from grpo_core.errors import ConfigError, RunStoppedError

JsonObject = dict[str, Any]


def append_line(path: Path, line: str) -> None:
    data = line.encode("utf-8", "backslashreplace") + b"\n"
    with writing(path), path.open("ab", buffering=0) as file:
        size = file.tell()
        if file.write(data) != len(data):
            file.truncate(size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextlib.contextmanager
def writing(path: Path, *, then: str = "continue with --resume") -> Iterator[None]:
    """A full disk and its like end the command with RunStoppedError. then: what to do when there is room again."""
    try:
        yield
    except OSError as error:
        raise RunStoppedError(f"{path} cannot be written: {error.strerror or error}; make room, then {then}") from None


def read_lines(path: Path) -> Iterator[JsonObject]:
    """The objects of a .jsonl file; a last line that a kill cut is left out."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.endswith(b"\n"):
                try:
                    yield json.loads(line)
                except ValueError as error:
                    raise ConfigError(f"{path}, line {number} is damaged: {error}; remove it, or name another run") from None


def finite(value: Any) -> Any:
    """The same with None in place of numbers that JSON does not have: NaN and infinities."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
