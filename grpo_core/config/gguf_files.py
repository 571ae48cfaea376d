"""Read the header of a GGUF file within bounds: what it holds, and the numbers of its config."""

from __future__ import annotations

import math
import struct
from io import BufferedReader
from pathlib import Path
from typing import Any

from grpo_core.config.model_files import MAX_AXES, Stored, check_kind, check_shape
from grpo_core.protocol.errors import UserError

MAX_ITEMS = 2**22
"""The most settings, tensors and members of lists; a vocabulary has up to 300,000, in 4 lists."""
MAX_TEXT = 2**24
"""The most bytes of a text; a chat template has a few thousand."""
_NUMBERS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
"""How the values of each type with a fixed size are packed."""
_TEXT, _LIST = 8, 9


def gguf_header(path: Path) -> Stored:
    """Return what a GGUF file says it holds.

    Raises:
        UserError: it is not a GGUF file, or asks for more than any model has.
    """
    check_kind(path)
    with path.open("rb") as file:
        try:
            return _Header(file, path).read()
        except (struct.error, ValueError) as error:
            raise UserError(
                f"{path} is not a GGUF file, or is damaged: {error!s:.200}; get the file again"
            ) from error


class _Header:
    """Reads a file from its start, and counts what it reads."""

    def __init__(self, file: BufferedReader, path: Path) -> None:
        self._file = file
        self._path = path
        self._items = 0

    def read(self) -> Stored:
        if self._file.read(4) != b"GGUF":
            raise ValueError("it does not begin with GGUF")
        version, tensors, settings = self._unpack("<I"), self._unpack("<Q"), self._unpack("<Q")
        if version not in (2, 3):
            raise ValueError(f"it has version {version}; 2 and 3 are known")
        self._count(tensors + settings)
        numbers: dict[str, Any] = {}
        for _ in range(settings):
            name = self._text()
            numbers[name.rpartition(".")[2]] = self._value(self._unpack("<I"))
        check_shape(numbers, self._path)
        sizes = dict(self._tensor() for _ in range(tensors))
        largest = max(sizes, key=lambda name: sizes[name], default="")
        return Stored(
            elements=sum(sizes.values()),
            size_bytes=self._path.stat().st_size,
            largest=sizes.get(largest, 0),
            largest_name=largest,
            names=frozenset(sizes),
        )

    def _tensor(self) -> tuple[str, int]:
        """Return name and number of elements of the next tensor."""
        name, axes = self._text(), self._unpack("<I")
        if axes > MAX_AXES:
            raise ValueError(f"the tensor {name!r:.100} has {axes} axes")
        elements = math.prod(self._unpack("<Q") for _ in range(axes))
        self._skip(4 + 8)  # its type and its place
        return name, elements

    def _value(self, kind: int) -> Any:
        """Return the next value of a type; None for a list, which is skipped."""
        if kind in _NUMBERS:
            return self._unpack(_NUMBERS[kind])
        if kind == _TEXT:
            return self._text()
        if kind != _LIST:
            raise ValueError(f"it has a value of the unknown type {kind}")
        kind, count = self._unpack("<I"), self._unpack("<Q")
        self._count(count)
        if kind in _NUMBERS:
            self._skip(count * struct.calcsize(_NUMBERS[kind]))
        elif kind == _TEXT:
            for _ in range(count):
                self._skip(self._length())
        else:
            raise ValueError(f"it has a list of the type {kind}")
        return None

    def _count(self, items: int) -> None:
        self._items += items
        if self._items > MAX_ITEMS:
            raise ValueError(f"it lists {self._items:,} things; at most {MAX_ITEMS:,} are taken")

    def _length(self) -> int:
        length: int = self._unpack("<Q")
        if length > MAX_TEXT:
            raise ValueError(f"it has a text of {length:,} bytes; at most {MAX_TEXT:,} are taken")
        return length

    def _text(self) -> str:
        return self._exactly(self._length()).decode("utf-8")

    def _unpack(self, layout: str) -> Any:
        return struct.unpack(layout, self._exactly(struct.calcsize(layout)))[0]

    def _exactly(self, size: int) -> bytes:
        data = self._file.read(size)
        if len(data) < size:
            raise ValueError("it ends within its header")
        return data

    def _skip(self, size: int) -> None:
        self._file.seek(size, 1)
