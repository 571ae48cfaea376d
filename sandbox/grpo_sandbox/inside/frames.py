"""The stream between a supervisor and the process outside: 8 bytes of length, then a JSON head.

The head of a request holds its limits and the size of its body. The supervisor reads the head;
the body (the program and its input) is left in the stream for the child that will run it, so that
nothing of it is ever in the memory from which later calls are forked. A reply's head is followed
by the bytes that the program wrote, straight from memory that children do not inherit.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

LENGTH_BYTES = 8
MAX_HEAD_BYTES = 1_000_000
MAX_BODY_BYTES = 64_000_000
REQUESTS, REPLIES, FIRST_FREE = 30, 31, 32
"""Descriptors of the two streams in a supervisor, and the first one above them."""


def pack(head: dict[str, Any]) -> bytes:
    """Return the bytes of a head with its length."""
    body = json.dumps(head).encode()
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def read_head() -> dict[str, Any] | None:
    """Return the head of the next request; None at the end of the stream."""
    size = int.from_bytes(read_exactly(LENGTH_BYTES), "big")
    text = read_exactly(size) if 0 < size <= MAX_HEAD_BYTES else b""
    head: dict[str, Any] | None = json.loads(text) if text else None
    return head


def read_exactly(size: int) -> bytes:
    """Return the next `size` bytes of the requests; empty bytes if the stream ends before."""
    parts = []
    while size > 0:
        part = os.read(REQUESTS, min(size, 1 << 20))
        if not part:
            return b""
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def write(head: dict[str, Any], parts: Sequence[memoryview] = ()) -> None:
    """Write a head and what follows it to the replies, in one piece where the stream takes it."""
    rest = [memoryview(pack(head)), *(part for part in parts if part)]
    while rest:
        written = os.writev(REPLIES, rest)
        while rest and written >= len(rest[0]):
            written -= len(rest.pop(0))
        if written:
            rest[0] = rest[0][written:]
