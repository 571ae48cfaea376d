"""Write compressed parts of a log in members of 1 MB, and read any place of a part.

A part is a valid .gz file: concatenated members are one. The header of each member holds its size,
as in the BGZF format, so the members are found without decompressing them. A part that an older
version wrote is one member without a size; it is decompressed from its start.
"""

from __future__ import annotations

import functools
import os
import struct
import sys
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from grpo_core.runs.files import RATIO, check_ratio, lines_of, open_to_read
from grpo_core.runs.unpacking import Allowance, decompressed

_MEMBER_BYTES = 1 << 20
"""Uncompressed bytes of a member: reading one line decompresses as much."""
_LEVEL = 3
"""The compression level; a higher one takes three times as long and saves a tenth."""
_HIGHEST_RATIO = RATIO * 9 // 10
"""A member that would be compressed more, as one word over and over is (up to 193 times were seen),
is filled up with empty blocks, so that no reader refuses it."""
_EMPTY_BLOCK = b"\x00\x00\x00\xff\xff"
_LAST_BLOCK = b"\x03\x00"
"""A stored block and a final one of nothing, as deflate writes them from a whole byte on."""
_HEADER = struct.Struct("<4sIBBH2sHI")
"""A gzip header with one extra field of four bytes: magic, time, flags, system, length of the extra
fields, name and length of the field, size of the whole member."""
_MAGIC = b"\x1f\x8b\x08\x04"
_FIELD = b"GC"
_TRAILER = struct.Struct("<II")
"""Checksum and size of the uncompressed bytes."""
_LARGEST_OLD_PART = 256 << 20
"""Compressed bytes of a single member above which its trailer, which counts modulo 4 GB, is not
trusted with its size."""


@dataclass(frozen=True, slots=True)
class Part:
    """Hold where one file of a log lies in it."""

    path: Path
    start: int
    """Number of uncompressed bytes of the log before this part."""
    size: int
    """Number of its uncompressed bytes."""
    stamp: str
    """Changes when the file does: inode, size and time."""
    inode: int
    offsets: tuple[int, ...]
    """Offset in the file of each member of `_MEMBER_BYTES`; () if it cannot be entered half-way."""

    @property
    def end(self) -> int:
        """Return the position in the log at which the part ends."""
        return self.start + self.size


def pack(source: IO[bytes], target: IO[bytes]) -> None:
    """Write the content of `source` to `target` in compressed members."""
    while chunk := source.read(_MEMBER_BYTES):
        packer = zlib.compressobj(_LEVEL, wbits=-zlib.MAX_WBITS)
        body = packer.compress(chunk) + packer.flush(zlib.Z_SYNC_FLUSH)
        missing_bytes = len(chunk) // _HIGHEST_RATIO - len(body)
        body += _EMPTY_BLOCK * max(0, missing_bytes // len(_EMPTY_BLOCK) + 1) + _LAST_BLOCK
        size = _HEADER.size + len(body) + _TRAILER.size
        target.write(_HEADER.pack(_MAGIC, 0, 0, 255, 8, _FIELD, 4, size))
        target.write(body)
        target.write(_TRAILER.pack(zlib.crc32(chunk), len(chunk)))


def layout(paths: list[Path]) -> list[Part]:
    """Return where each file of a log lies in it.

    Args:
        paths: the files in order.

    Raises:
        OSError, EOFError, zlib.error: a file cannot be read, or the compressed ones stand for too
            much.
    """
    parts: list[Part] = []
    packed = unpacked = 0
    for path in paths:
        with open_to_read(path) as file:
            status = os.fstat(file.fileno())
        start = parts[-1].end if parts else 0
        stamp = f"{status.st_ino} {status.st_size} {status.st_mtime_ns}"
        size, offsets = _members(path, stamp) if path.suffix == ".gz" else (status.st_size, ())
        if path.suffix == ".gz":
            packed, unpacked = packed + status.st_size, unpacked + size
            check_ratio(packed, unpacked)
        parts.append(Part(path, start, size, stamp, status.st_ino, offsets))
    return parts


@functools.lru_cache(maxsize=4096)
def _members(path: Path, stamp: str) -> tuple[int, tuple[int, ...]]:
    """Return the uncompressed size of a compressed part and the offsets of its members."""
    offsets, total = [], 0
    with open_to_read(path) as file:
        end = file.seek(0, os.SEEK_END)
        offset = 0
        while offset < end:
            file.seek(offset)
            header = file.read(_HEADER.size)
            size = _member_size(header)
            if size is None:
                return _size_of_old(path, end), ()
            offsets.append(offset)
            offset += size
            file.seek(offset - _TRAILER.size)
            total += _TRAILER.unpack(_exactly(file, _TRAILER.size))[1]
    return total, tuple(offsets)


def _member_size(header: bytes) -> int | None:
    """Return the size of a member from its header; None if the header does not say it."""
    if len(header) < _HEADER.size:
        return None
    magic, _, _, _, extra, name, length, size = _HEADER.unpack(header)
    if (magic, extra, name, length) != (_MAGIC, 8, _FIELD, 4) or size <= _HEADER.size:
        return None
    return int(size)


def _size_of_old(path: Path, file_size: int) -> int:
    """Return the uncompressed size of a part without sizes of members."""
    if file_size > _LARGEST_OLD_PART:
        with decompressed(open_to_read(path), Allowance()) as unpacked:
            return _skip(unpacked, sys.maxsize)
    with open_to_read(path) as file:
        file.seek(max(0, file_size - 4))
        return int(struct.unpack("<I", _exactly(file, 4))[0])


def _exactly(file: IO[bytes], size: int) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise EOFError("it ends within a member")
    return data


def open_at(part: Part, position: int) -> IO[bytes]:
    """Open a part of a log at a position of the log."""
    inside = position - part.start
    raw = open_to_read(part.path)
    if part.path.suffix != ".gz":
        raw.seek(inside)
        return raw
    if part.offsets:
        number = min(inside // _MEMBER_BYTES, len(part.offsets) - 1)
        raw.seek(part.offsets[number])
        inside -= number * _MEMBER_BYTES
    # What the layout says has been checked, so this allowance only ends what it does not say.
    unpacked = decompressed(raw, Allowance(part.size))
    _skip(unpacked, inside)
    return unpacked


def _skip(file: IO[bytes], size: int) -> int:
    """Read up to `size` bytes and forget them; return how many there were."""
    count = 0
    while chunk := file.read(min(_MEMBER_BYTES, size - count)):
        count += len(chunk)
    return count


def read(parts: list[Part], position: int, size: int) -> bytes:
    """Return `size` bytes of the log from `position` on.

    Raises:
        EOFError: the log is shorter.
        OSError, zlib.error: a part cannot be read.
    """
    data = b""
    for part in parts:
        wanted = min(position + size, part.end) - position - len(data)
        if part.start <= position + len(data) and wanted > 0:
            with closing(open_at(part, position + len(data))) as file:
                data += _exactly(file, wanted)
    if len(data) < size:
        raise EOFError(f"it has no {size:,} bytes at {position:,}")
    return data


def checksum(part: Part, size: int) -> int:
    """Return the checksum of the first `size` bytes of a part."""
    value = 0
    with closing(open_at(part, part.start)) as file:
        while size and (chunk := file.read(min(size, _MEMBER_BYTES))):
            value = zlib.crc32(chunk, value)
            size -= len(chunk)
    return value


def lines_from(part: Part, position: int) -> Iterator[bytes]:
    """Yield the lines of a part from a position of the log on; the last may lack its line feed."""
    with closing(open_at(part, position)) as file:
        yield from lines_of(file)
