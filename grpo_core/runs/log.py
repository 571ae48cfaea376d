"""Keep a log of JSON lines that can be checked and cut by the length and digest in a checkpoint.

Lines are appended to NAME.jsonl. When that file is large, its content is moved to a compressed part
(NAME-000001.jsonl.gz and so on), and NAME.jsonl starts empty. Positions count the uncompressed
bytes of all parts together.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypedDict

from grpo_core.protocol.errors import ConfigError
from grpo_core.runs.atomic import sync
from grpo_core.runs.files import (
    LINE_BYTES,
    UnsafeFileError,
    lines_of,
    names_in,
    open_to_change,
    open_to_read,
    replacing,
    sync_file,
)
from grpo_core.runs.lines import (
    JsonObject,
    append_line,
    parse_line,
    parse_lines,
    unreadable,
    writing,
)
from grpo_core.runs.members import Part, layout, pack
from grpo_core.runs.seal import DamagedError
from grpo_core.runs.unpacking import Allowance, decompressed

_CHUNK_BYTES = 1 << 20
_MOST_PARTS = 100_000
READ_ERRORS = (OSError, EOFError, zlib.error)
"""The errors that reading a damaged part raises."""
_LAYOUT_TRIES = 3


class Mark(TypedDict, total=False):
    """Describe a position in a log."""

    bytes: int
    """The number of bytes before the position."""
    sha256: str
    """The digest of these bytes; absent in folders of format 1."""


class LineLog:
    """Append to, check, cut and compress one log, which only one process may write."""

    def __init__(self, path: Path) -> None:
        """Set the path of the log, NAME.jsonl."""
        self.path = path
        self._size_and_hash: tuple[int, Any] | None = None
        """The size in bytes and the running hash of the log; None until it has been read."""

    def append(self, line: str) -> None:
        """Append a line, completely or not at all.

        Raises:
            RunStoppedError: the line cannot be written.
        """
        count, digest = self._read_size_and_hash()
        data = append_line(self.path, line)
        digest.update(data)
        self._size_and_hash = (count + len(data), digest)

    def mark(self) -> Mark:
        """Return the position at the end of the log."""
        count, digest = self._read_size_and_hash()
        return {"bytes": count, "sha256": digest.hexdigest()}

    def sync(self) -> None:
        """Flush the log to disk."""
        if os.path.lexists(self.path):
            with writing(self.path):
                sync_file(self.path)

    def lines(self, prefixes: tuple[bytes, ...] = (b"",)) -> Iterator[JsonObject]:
        """Yield the JSON object of each line that starts with one of the prefixes.

        Args:
            prefixes: lines that start otherwise are skipped without being parsed.

        Raises:
            ConfigError: a line is damaged, or a part cannot be read.
        """
        allowance = Allowance()
        for part in self._parts():
            try:
                with _open_part(part, allowance) as file:
                    yield from parse_lines(lines_of(file), part, prefixes)
            except READ_ERRORS as error:
                raise ConfigError(unreadable(part, error)) from None

    def layout(self) -> list[Part]:
        """Return where each file of the log lies in it.

        Raises:
            ConfigError: a file cannot be read.
        """
        for attempt in range(_LAYOUT_TRIES):
            paths = self._parts()
            try:
                return layout(paths)
            except READ_ERRORS as error:
                # The run may have compressed a file since its name was read.
                if attempt == _LAYOUT_TRIES - 1:
                    raise ConfigError(unreadable(self.path, error)) from None
        raise AssertionError("unreachable")

    def check(self, mark: Mark) -> None:
        """Check that the log before `mark` is what was written.

        Raises:
            DamagedError: it is shorter, differs, or does not end with a whole line.
        """
        count, digest, last_byte = self._read(mark["bytes"])
        if count < mark["bytes"]:
            raise DamagedError(f"it has {count:,} of {mark['bytes']:,} bytes")
        if mark.get("sha256", digest.hexdigest()) != digest.hexdigest() or last_byte != b"\n":
            raise DamagedError("its lines are not those that were written")

    def cut(self, mark: Mark) -> None:
        """Remove everything after `mark`; `check` must have accepted the log up to there."""
        start = 0
        for part in self._parts():
            kept_bytes = mark["bytes"] - start
            # A part of which nothing is kept is not read, because it may be damaged.
            size = _size(part, at_most=kept_bytes + 1) if kept_bytes else 1
            if kept_bytes < size:
                with writing(self.path):
                    self._end_in_part(part, kept_bytes)
                break
            start += size
        self._size_and_hash = None

    def keep(self, wanted: Callable[[JsonObject], bool]) -> int:
        """Keep only the lines for which `wanted` is true.

        Returns:
            How many lines could not be read; they are removed.
        """
        unreadable_count = 0
        with writing(self.path):
            with replacing(self.path) as out:
                for line in self._raw_lines():
                    value = parse_line(line) if line.endswith(b"\n") else None
                    unreadable_count += value is None
                    if value is not None and wanted(value):
                        out.write(line)
                parts = self._parts()
            for part in parts:
                if part != self.path:
                    part.unlink(missing_ok=True)
        self._size_and_hash = None
        return unreadable_count

    def compress(self, *, above_bytes: float) -> None:
        """Move NAME.jsonl to a compressed part if it is larger than `above_bytes`."""
        if not self.path.exists() or self.path.stat().st_size <= above_bytes:
            return
        self._read_size_and_hash()  # before compression, so that `mark` need not decompress
        number = max(self._parts_by_number(), default=0) + 1
        plain = self.path.with_name(f"{self.path.stem}-{number:06d}{self.path.suffix}")
        with writing(self.path):
            self.path.rename(plain)
            sync(plain.parent)
            with (
                open_to_read(plain) as source,
                replacing(plain.with_name(f"{plain.name}.gz")) as packed,
            ):
                pack(source, packed)
            plain.unlink()

    def _read_size_and_hash(self) -> tuple[int, Any]:
        """Return the size in bytes and the running hash of the log; read the log the first time."""
        if self._size_and_hash is None:
            try:
                self._size_and_hash = self._read(sys.maxsize)[:2]
            except DamagedError as error:
                raise ConfigError(f"the log {self.path} cannot be continued: {error}") from None
        return self._size_and_hash

    def _read(self, limit: int) -> tuple[int, Any, bytes]:
        """Return the number, the running hash and the last of the first `limit` bytes."""
        count, digest, last_byte = 0, hashlib.sha256(), b"\n"
        allowance = Allowance()
        for part in self._parts():
            for chunk in _chunks_of(part, allowance):
                kept = chunk[: limit - count]
                count += len(kept)
                digest.update(kept)
                last_byte = kept[-1:] or last_byte
                if len(kept) < len(chunk):  # the rest may be damaged: do not read it
                    return count, digest, last_byte
        return count, digest, last_byte

    def _end_in_part(self, part: Path, size: int) -> None:
        """Make the first `size` bytes of a part the end of the log.

        The order of the file operations ensures that the log still begins with these bytes and all
        earlier ones if the process is killed in between.
        """
        parts = self._parts()
        if part == self.path:
            with open_to_change(self.path) as file:
                file.truncate(size)
            return
        plain = part.with_name(f"{part.name.removesuffix('.gz')}")
        with replacing(plain) as out:  # from then on, `_parts` prefers it to the compressed part
            for chunk in _chunks_of(part, Allowance()) if size else ():
                out.write(chunk[: size - out.tell()])
                if out.tell() == size:  # the rest is dropped and may be damaged: do not read it
                    break
        for later in reversed(parts[parts.index(part) + 1 :]):
            later.unlink(missing_ok=True)
        plain.with_name(f"{plain.name}.gz").unlink(missing_ok=True)
        plain.rename(self.path)
        sync(self.path.parent)

    def _parts(self) -> list[Path]:
        """Return the files of the log in order."""
        numbered = [part for _, part in sorted(self._parts_by_number().items())]
        return [*numbered, self.path] if os.path.lexists(self.path) else numbered

    def _parts_by_number(self) -> dict[int, Path]:
        """Return the parts with a number; if a part exists in both forms, the plain one.

        Raises:
            ConfigError: the folder cannot be read, or holds more parts than a run writes.
        """
        pattern = re.compile(
            rf"{re.escape(self.path.stem)}-(\d{{6}}){re.escape(self.path.suffix)}(\.gz)?", re.ASCII
        )
        names: dict[int, str] = {}
        try:
            for match in filter(None, map(pattern.fullmatch, names_in(self.path.parent))):
                number = int(match[1])
                names[number] = min(match[0], names.get(number, match[0]), key=len)
                if len(names) > _MOST_PARTS:
                    raise UnsafeFileError(f"it has more than {_MOST_PARTS:,} parts")
        except OSError as error:
            raise ConfigError(unreadable(self.path, error)) from None
        return {number: self.path.with_name(name) for number, name in names.items()}

    def _raw_lines(self) -> Iterator[bytes]:
        """Yield the lines that can be read; stop reading a part where it is damaged."""
        allowance = Allowance()
        for part in self._parts():
            try:
                with _open_part(part, allowance) as file:
                    yield from lines_of(file)
            except READ_ERRORS:
                yield b""  # stands for one line that cannot be read


def _open_part(path: Path, allowance: Allowance) -> io.BufferedReader:
    """Open a file of a log, which is decompressed while it is read."""
    file = open_to_read(path)
    return decompressed(file, allowance) if path.suffix == ".gz" else file


def _chunks_of(path: Path, allowance: Allowance) -> Iterator[bytes]:
    """Yield the uncompressed content of a part in chunks.

    Raises:
        DamagedError: the part cannot be read, or has too long a line.
    """
    since_line = 0
    try:
        with _open_part(path, allowance) as file:
            while chunk := file.read(_CHUNK_BYTES):
                end = chunk.rfind(b"\n")
                since_line = since_line + len(chunk) if end < 0 else len(chunk) - end - 1
                if since_line > LINE_BYTES:
                    raise UnsafeFileError(f"a line has more than {LINE_BYTES >> 20} MB")
                yield chunk
    except READ_ERRORS as error:
        raise DamagedError(
            f"{path.name} cannot be read ({getattr(error, 'strerror', None) or error})"
        ) from None


def _size(part: Path, *, at_most: int) -> int:
    """Return the uncompressed size of a part in bytes; stop counting at `at_most` or soon after."""
    count = 0
    for chunk in _chunks_of(part, Allowance()):
        count += len(chunk)
        if count >= at_most:
            break
    return count
