"""A log of JSON lines that can be checked and cut: its length and digest stand in checkpoints.

NAME.jsonl grows. Once it is large, its content becomes a part of its own, NAME-000001.jsonl.gz and
so on, and NAME.jsonl begins anew; positions count the uncompressed bytes of all of them together.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypedDict

from grpo_core.protocol.errors import ConfigError
from grpo_core.runs.atomic import sync
from grpo_core.runs.lines import (
    JsonObject,
    append_line,
    parse_line,
    parse_lines,
    unreadable,
    writing,
)
from grpo_core.runs.seal import DamagedError

_CHUNK_BYTES = 1 << 20
_LEVEL = 3
"""Of the compression: a higher one takes three times as long and saves a tenth."""
_DAMAGE = (OSError, EOFError, zlib.error)


class Mark(TypedDict, total=False):
    """A position in a log."""

    bytes: int
    """How many bytes stand before it."""
    sha256: str
    """The digest of these bytes; absent in folders of format 1."""


class LineLog:
    """One log; only one process writes it.

    Args:
        path: NAME.jsonl.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._written: tuple[int, Any] | None = None  # the bytes and the hash so far

    def append(self, line: str) -> None:
        """Append a line, whole or not at all; raises RunStoppedError if it cannot be written."""
        count, digest = self._state()
        data = append_line(self.path, line)
        digest.update(data)
        self._written = (count + len(data), digest)

    def mark(self) -> Mark:
        """Return the position at the end."""
        count, digest = self._state()
        return {"bytes": count, "sha256": digest.hexdigest()}

    def sync(self) -> None:
        """Wait until the log is on disk."""
        if self.path.exists():
            with writing(self.path):
                sync(self.path)

    def lines(self, beginnings: tuple[bytes, ...] = (b"",)) -> Iterator[JsonObject]:
        """Yield the object of each line that begins so; raise ConfigError for one that is damaged.

        Args:
            beginnings: lines that begin otherwise are passed over without being parsed.
        """
        for part in self._parts():
            try:
                with _opened(part) as file:
                    yield from parse_lines(file, part, beginnings)
            except _DAMAGE as error:
                raise ConfigError(unreadable(part, error)) from None

    def check(self, mark: Mark) -> None:
        """Raise DamagedError if what stands before `mark` is not what was written."""
        count, digest, last = 0, hashlib.sha256(), b"\n"
        for chunk in self._chunks():
            taken = chunk[: mark["bytes"] - count]
            count += len(taken)
            digest.update(taken)
            last = taken[-1:] or last
            if len(taken) < len(chunk):
                break
        if count < mark["bytes"]:
            raise DamagedError(f"it has {count:,} of {mark['bytes']:,} bytes")
        if mark.get("sha256", digest.hexdigest()) != digest.hexdigest() or last != b"\n":
            raise DamagedError("its lines are not those that were written")

    def cut(self, mark: Mark) -> None:
        """Forget what follows after `mark`, up to which the log has been checked."""
        start = 0
        for part in self._parts():
            rest = mark["bytes"] - start
            size = (
                _size(part, at_most=rest + 1) if rest else 1
            )  # what is given up whole may be damaged
            if rest < size:
                with writing(self.path):
                    self._keep(part, rest)
                break
            start += size
        self._written = None

    def keep(self, wanted: Callable[[JsonObject], bool]) -> int:
        """Keep the lines for which `wanted` is true; return how many could not be read."""
        dropped = 0
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        with writing(self.path):
            with temporary.open("wb") as out:
                for line in self._raw_lines():
                    value = parse_line(line) if line.endswith(b"\n") else None
                    dropped += value is None
                    if value is not None and wanted(value):
                        out.write(line)
            sync(temporary)
            parts = self._parts()
            temporary.replace(self.path)
            for part in parts:
                if part != self.path:
                    part.unlink(missing_ok=True)
        self._written = None
        return dropped

    def compress(self, *, above_bytes: float) -> None:
        """Make a compressed part of the log if it has more bytes than `above_bytes`."""
        if not self.path.exists() or self.path.stat().st_size <= above_bytes:
            return
        self._state()  # later marks need no second reading
        number = max((_number(part) for part in self._parts()), default=0) + 1
        plain = self.path.with_name(f"{self.path.stem}-{number:06d}{self.path.suffix}")
        with writing(self.path):
            self.path.rename(plain)
            sync(plain.parent)
            temporary = plain.with_name(f".{plain.name}.gz")
            with (
                plain.open("rb") as source,
                temporary.open("wb") as raw,
                gzip.GzipFile("", "wb", _LEVEL, raw, mtime=0) as packed,
            ):
                shutil.copyfileobj(source, packed, _CHUNK_BYTES)
            sync(temporary)
            temporary.replace(plain.with_name(f"{plain.name}.gz"))
            sync(plain.parent)
            plain.unlink()

    def _state(self) -> tuple[int, Any]:
        if self._written is None:
            count, digest = 0, hashlib.sha256()
            for chunk in self._chunks():
                count += len(chunk)
                digest.update(chunk)
            self._written = (count, digest)
        return self._written

    def _keep(self, part: Path, size: int) -> None:
        """Make the first `size` bytes of a part the end of the log.

        Files are changed in such an order that a kill leaves a log that begins with these bytes.
        """
        parts = self._parts()
        if part == self.path:
            os.truncate(self.path, size)
            return
        plain = part.with_name(f"{part.name.removesuffix('.gz')}")
        temporary = part.with_name(f".{plain.name}")
        with temporary.open("wb") as out:
            for chunk in _chunks_of(part) if size else ():
                out.write(chunk[: size - out.tell()])
                if out.tell() == size:  # what follows may be damaged, and is given up
                    break
        sync(temporary)
        temporary.replace(plain)  # it is read instead of the compressed part from here on
        for later in reversed(parts[parts.index(part) + 1 :]):
            later.unlink(missing_ok=True)
        plain.with_name(f"{plain.name}.gz").unlink(missing_ok=True)
        plain.rename(self.path)
        sync(self.path.parent)

    def _parts(self) -> list[Path]:
        """Return the files of the log in order; of a part that is there twice, the plain one."""
        pattern = re.compile(
            rf"{re.escape(self.path.stem)}-\d{{6}}{re.escape(self.path.suffix)}(\.gz)?"
        )
        found: dict[int, Path] = {}
        for path in sorted(self.path.parent.glob(f"{self.path.stem}-*"), reverse=True):
            if pattern.fullmatch(path.name):
                found[_number(path)] = path
        numbered = [found[number] for number in sorted(found)]
        return [*numbered, self.path] if self.path.is_file() else numbered

    def _chunks(self) -> Iterator[bytes]:
        for part in self._parts():
            yield from _chunks_of(part)

    def _raw_lines(self) -> Iterator[bytes]:
        """Yield the lines that can be read; a compressed part ends where it is damaged."""
        for part in self._parts():
            try:
                with _opened(part) as file:
                    yield from file
            except _DAMAGE:
                yield b""  # counts as one that cannot be read


def _opened(path: Path) -> Any:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


def _chunks_of(path: Path) -> Iterator[bytes]:
    """Yield the content of a part; raise DamagedError where it cannot be read."""
    try:
        with _opened(path) as file:
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk
    except _DAMAGE as error:
        raise DamagedError(
            f"{path.name} cannot be read ({getattr(error, 'strerror', None) or error})"
        ) from None


def _size(part: Path, *, at_most: int) -> int:
    """Return how many bytes a part has; once there are `at_most`, no more are counted."""
    count = 0
    for chunk in _chunks_of(part):
        count += len(chunk)
        if count >= at_most:
            break
    return count


def _number(path: Path) -> int:
    match = re.search(r"-(\d{6})\.", path.name)
    return int(match[1]) if match else 0
