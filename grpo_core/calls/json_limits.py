"""Bound the parts of a JSON text before anything parses it.

A parser holds the interpreter's lock until its end and makes an object of each part, so a text of a
few megabytes can stop every other task for a second, and fill hundreds of megabytes. Counting is
done part by part, as the bytes arrive.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_SLICE_BYTES = 65_536
_ESCAPE = re.compile(rb"\\.", re.DOTALL)
_OPENING = b"{["
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"{}[]")


@dataclass(frozen=True, slots=True)
class JsonLimits:
    """Hold the most parts that a JSON text may have."""

    depth: int = 64
    """How deep objects and lists may stand in each other."""
    containers: int = 12_000
    """Number of objects and lists."""
    strings: int = 60_000
    """Number of texts, those that name fields included."""
    values: int = 300_000
    """Number of values in objects and lists."""


DEFAULT_LIMITS = JsonLimits()
"""More than a sensible request has; a parser takes less than 100 ms for them."""


class JsonLimitError(ValueError):
    """A JSON text has too many parts; the message says of which kind, and how many are allowed."""


class JsonScan:
    """Count the parts of a JSON text while its bytes arrive.

    Invalid JSON is not detected: the counts are exact up to the place where a parser stops.

    Args:
        limits: the most parts.
    """

    def __init__(self, limits: JsonLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._in_string = False
        self._escape = b""
        self._depth = self._containers = self._quotes = self._commas = 0

    def add(self, part: bytes) -> None:
        """Count the parts in the next bytes.

        Raises:
            JsonLimitError: there are too many.
        """
        if self._depth < 0:
            return  # more was closed than opened, so a parser stopped before
        part = self._escape + part
        self._escape = b""
        if b"\\" in part:
            part = _ESCAPE.sub(b"", part)
            if part.endswith(b"\\"):
                self._escape, part = b"\\", part[:-1]
        pieces = part.split(b'"')
        outside = b"".join(pieces[self._in_string :: 2])
        self._quotes += len(pieces) - 1
        self._in_string ^= len(pieces) % 2 == 0
        self._commas += outside.count(b",")
        self._containers += outside.count(b"{") + outside.count(b"[")
        self._check_counts()
        for bracket in outside.translate(None, _NOT_BRACKETS):
            self._depth += 1 if bracket in _OPENING else -1
            if self._depth < 0:
                return
            if self._depth > self._limits.depth:
                raise JsonLimitError(
                    f"objects and lists stand in each other more than {self._limits.depth} deep; "
                    "send JSON that is nested less"
                )

    def _check_counts(self) -> None:
        limits = self._limits
        for count, most, kind in (
            (self._containers, limits.containers, "objects and lists"),
            (self._quotes // 2, limits.strings, "texts"),
            (self._commas + self._containers, limits.values, "values"),
        ):
            if count > most:
                raise JsonLimitError(f"there are more than {most} {kind}; send less at a time")


def check_json(text: bytes | str, limits: JsonLimits = DEFAULT_LIMITS) -> None:
    """Count the parts of a JSON text.

    Raises:
        JsonLimitError: there are too many.
    """
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    scan = JsonScan(limits)
    for start in range(0, len(data), _SLICE_BYTES):
        scan.add(data[start : start + _SLICE_BYTES])
