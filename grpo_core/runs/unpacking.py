"""Decompress .gz files as a stream, and stop where a few bytes stand for too many."""

from __future__ import annotations

import io
import zlib
from typing import TYPE_CHECKING

from grpo_core.runs.files import check_ratio

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_CHUNK_BYTES = 1 << 18
_GZIP = 16 + zlib.MAX_WBITS


class Allowance:
    """Count what the compressed parts of one log take and give."""

    def __init__(self, expected: int = 0) -> None:
        """Start at zero.

        Args:
            expected: how many decompressed bytes are allowed whatever they are compressed to.
        """
        self._expected = expected
        self._packed = self._unpacked = 0

    def add(self, packed: int, unpacked: int) -> None:
        """Add bytes that were read and what they stand for.

        Raises:
            UnsafeFileError: they stand for too much.
        """
        self._packed += packed
        self._unpacked += unpacked
        if self._unpacked > self._expected:
            check_ratio(self._packed, self._unpacked)


def decompressed(file: io.BufferedReader, allowance: Allowance) -> io.BufferedReader:
    """Return the decompressed content of a .gz file from where it stands; closing it closes both.

    Reading raises:
        EOFError, zlib.error: the file is cut or damaged.
        UnsafeFileError: it stands for too much.
    """
    return io.BufferedReader(_Unpacked(file, allowance), _CHUNK_BYTES)


class _Unpacked(io.RawIOBase):
    """Read the members of a .gz file one after another."""

    def __init__(self, file: io.BufferedReader, allowance: Allowance) -> None:
        self._file, self._allowance = file, allowance
        self._member = zlib.decompressobj(_GZIP)
        self._input = b""
        """Bytes of the file that the present member has not taken yet."""
        self._has_begun = False
        """Whether the present member has taken any."""

    def readable(self) -> bool:
        """Return that it can be read, as `io` asks."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Fill the buffer, or less of it; return how many bytes, 0 at the end."""
        with memoryview(buffer) as view:
            while True:
                if self._member.eof:
                    self._begin_member()
                read = 0 if self._input else self._refill()
                if not self._input and not self._has_begun:
                    return 0
                data = self._take(len(view))
                self._allowance.add(read, len(data))
                if data:
                    view[: len(data)] = data
                    return len(data)
                if not read and not self._input and not self._member.eof:
                    raise EOFError("it ends within a member")

    def close(self) -> None:
        """Close the file, too."""
        super().close()
        self._file.close()

    def _begin_member(self) -> None:
        self._member, self._has_begun = zlib.decompressobj(_GZIP), False
        self._input = self._input.lstrip(b"\0")  # zeros may fill the space between members

    def _refill(self) -> int:
        """Read compressed bytes, and return how many."""
        chunk = self._file.read(_CHUNK_BYTES)
        self._input = chunk if self._has_begun else chunk.lstrip(b"\0")
        return len(chunk)

    def _take(self, most: int) -> bytes:
        """Return the next decompressed bytes of the present member."""
        data = self._member.decompress(self._input, most)
        self._input = self._member.unconsumed_tail or self._member.unused_data
        self._has_begun = True
        return data
