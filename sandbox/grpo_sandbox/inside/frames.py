"""The stream between a supervisor and the process outside: 8 bytes of length, then a JSON head.

The head of a request has its limits and the size of its body. The supervisor reads the head and
leaves the body (the program and its input) in the stream for the child that will run it, so the
body is never in the memory from which later calls are forked. A reply is not JSON: it is numbers
and then the bytes that the program wrote, straight from memory that children do not inherit, since
even the size of another program's output may be enough to communicate.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Sequence
from typing import Any

LENGTH_BYTES = 8
MAX_HEAD_BYTES = 1_000_000
MAX_BODY_BYTES = 64_000_000
STATUSES = (
    "claimed", "no_result", "bad_result", "output_limit", "timeout_cpu", "timeout_wall", "oom",
    "signal", "ended",
)  # fmt: skip
REPLY = struct.Struct("!BiddBB3Q")
"""Index in STATUSES, wait status, seconds of processor time, seconds, whether the jail is clean,
whether its memory ran out, and the sizes of the result, stdout and stderr."""
CONTROL, REQUESTS, REPLIES, FIRST_FREE = 29, 30, 31, 32
"""Descriptors of a supervisor's end of the forwarder's control and of the two streams, and the
first one above them."""


def pack(head: dict[str, Any]) -> bytes:
    """Return the bytes of a head with its length."""
    body = json.dumps(head).encode()
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def read_head() -> dict[str, Any] | None:
    """Read the head of the next request, or return None at the end of the stream."""
    size = int.from_bytes(read_exactly(LENGTH_BYTES), "big")
    text = read_exactly(size) if 0 < size <= MAX_HEAD_BYTES else b""
    head: dict[str, Any] | None = json.loads(text) if text else None
    return head


def unpack(body: bytes) -> tuple[dict[str, Any], memoryview]:
    """Return the head with which `body` begins, and the rest of `body`."""
    size = int.from_bytes(body[:LENGTH_BYTES], "big")
    return json.loads(body[LENGTH_BYTES : LENGTH_BYTES + size]), memoryview(body)[
        LENGTH_BYTES + size :
    ]


def read_exactly(size: int) -> bytes:
    """Read the next `size` bytes of the requests, or return b"" if the stream ends before."""
    parts = []
    while size > 0:
        part = os.read(REQUESTS, min(size, 1 << 20))
        if not part:
            return b""
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def write(parts: Sequence[bytes | memoryview]) -> None:
    """Write `parts` to the replies, in one piece if the stream takes it."""
    rest = [memoryview(part) for part in parts if part]
    while rest:
        written = os.writev(REPLIES, rest)
        while rest and written >= len(rest[0]):
            written -= len(rest.pop(0))
        if written:
            rest[0] = rest[0][written:]
