"""Read and write JSON lines: whole lines only, errors that name the file, only finite numbers.

Here, too, are told apart the lines of metrics.jsonl.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from grpo_core.protocol.errors import ConfigError, RunStoppedError
from grpo_core.runs.documents import parse_json
from grpo_core.runs.files import UnsafeFileError, lines_of, open_to_change, open_to_read

JsonObject = dict[str, Any]
_FIRST_FIELD = b'{"step": '
"""How each line of rollouts.jsonl begins."""
DEEPEST = 100
"""Most levels of lists and objects in what is written or shown."""
_REMEDIES: dict[int | None, str] = {
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "make it writable for this user"),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, None), "make room"),
}
"""What the user can do about a failed write, by the number of its error."""


class Kind(StrEnum):
    """Name what a line of metrics.jsonl describes."""

    STEP = "step"
    EVALUATION = "evaluation"
    OTHER = "other"
    """What only a newer version knows."""


def kind_of(line: Mapping[str, Any]) -> Kind:
    """Return the kind of a line; one of an older version, which names none, is told by its keys."""
    if "kind" in line:
        return Kind(line["kind"]) if line["kind"] in list(Kind) else Kind.OTHER
    return Kind.EVALUATION if "eval/reward/mean" in line else Kind.STEP


def append_line(path: Path, line: str, *, then: str = "continue with --resume") -> bytes:
    """Append one line in a single write, completely or not at all.

    Args:
        path: the file.
        line: the line, without its line feed.
        then: as for `writing`.

    Returns:
        The bytes that were written, including the line feed.

    Raises:
        RunStoppedError: the line cannot be written.
    """
    data = line.encode("utf-8", "backslashreplace") + b"\n"
    with writing(path, then=then), open_to_change(path, creates=True) as file:
        size = file.tell()
        try:
            if file.write(data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            # The error to report is that of the write.
            with contextlib.suppress(OSError):
                os.ftruncate(file.fileno(), size)
            raise
    return data


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
        remedy = _REMEDIES.get(error.errno, "check the disk")
        if isinstance(error, UnsafeFileError):
            remedy = error.advice
        raise RunStoppedError(
            f"{path} cannot be written: {error.strerror or error}; {remedy}, then {then}"
        ) from None


def read_lines(path: Path) -> Iterator[JsonObject]:
    """Yield the objects of a .jsonl file; yield nothing if the file does not exist.

    A last line without a line feed, as a killed process may leave it, is skipped.

    Raises:
        ConfigError: a line is damaged, or the file cannot be read.
    """
    try:
        with open_to_read(path) as file:
            yield from parse_lines(lines_of(file), path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(unreadable(path, error)) from None


def parse_lines(
    lines: Iterable[bytes], path: Path, prefixes: tuple[bytes, ...] = (b"",)
) -> Iterator[JsonObject]:
    """Yield the JSON object of each complete line that starts with one of the prefixes.

    Args:
        lines: the lines of the file; one without a line feed is skipped.
        path: the file, for the message.
        prefixes: lines that start otherwise, with another step, are skipped without being parsed.

    Raises:
        ConfigError: a line is damaged.
    """
    for number, line in enumerate(lines, 1):
        # What is skipped must look like a line, so that no flood of line feeds is waited for.
        if not line.endswith(b"\n") or (
            not line.startswith(prefixes) and line.startswith(_FIRST_FIELD)
        ):
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
        value = parse_json(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def unreadable(path: Path, error: Exception) -> str:
    """Return the message for a file that cannot be read."""
    reason = getattr(error, "strerror", None) or error
    advice = "restore it"
    if isinstance(error, PermissionError):
        advice = "make it readable for this user"
    elif isinstance(error, UnsafeFileError):
        advice = error.advice
    return f"{path} cannot be read: {reason}; {advice}, or name another run"


def finite(value: Any, *, levels: int = DEEPEST) -> Any:
    """Return a copy of the value in which None replaces NaN and infinities, which JSON lacks.

    What is nested deeper than `levels` levels, as only nonsense is, is replaced by a text.
    """
    if isinstance(value, (Mapping, list, tuple)) and not levels:
        return f"nested more than {DEEPEST} levels deep"
    if isinstance(value, Mapping):
        return {key: finite(item, levels=levels - 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item, levels=levels - 1) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
