"""What travels between the trainer and a worker: length-prefixed JSON, never pickles.

A request is an object with an `id`; `grpo_core.calls.replies` says what a reply is.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, Protocol

from grpo_core.protocol.types import Message, Rollout, Task, Verdict

MAX_FRAME_BYTES = 64_000_000
_HEADER_BYTES = 8
_PER_TOKEN = ("token_ids", "trainable", "positions")


class Readable(Protocol):
    """A raw stream to read from."""

    def read(self, size: int, /) -> bytes | None: ...


class Writable(Protocol):
    """A raw stream to write to; tells how many bytes it took."""

    def write(self, data: memoryview, /) -> int | None: ...


def write_frame(stream: Writable, body: bytes, *, limit: int = MAX_FRAME_BYTES) -> None:
    """Send one message.

    Raises:
        OSError: nobody reads any more.
        ValueError: the message is too large.
    """
    if len(body) > limit:
        size = f"{len(body):,} bytes is too large for the pipe (at most {limit:,})"
        raise ValueError(f"a message of {size}; keep `detail` small")
    rest = memoryview(len(body).to_bytes(_HEADER_BYTES, "big") + body)
    while rest:
        rest = rest[stream.write(rest) or 0 :]


def read_frame(stream: Readable, *, limit: int = MAX_FRAME_BYTES) -> bytes:
    """Return the next message.

    Raises:
        EOFError: the stream has ended.
        ValueError: the header announces more than `limit` bytes; none of them is read.
    """
    size = int.from_bytes(_read_exactly(stream, _HEADER_BYTES), "big")
    if size > limit:
        raise ValueError(f"its header announces {size:,} bytes; at most {limit:,} are read")
    return _read_exactly(stream, size)


def _read_exactly(stream: Readable, size: int) -> bytes:
    parts: list[bytes] = []
    while size > 0:
        part = stream.read(min(size, 1_000_000))
        if not part:
            raise EOFError("the stream has ended")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def encode(value: Any) -> Any:
    """JSON for what an environment is asked with and answers: a Rollout, a Verdict and messages by name, plain values as they are.

    A Rollout goes without prompt_ids and logprobs: a verdict may depend on what was said and how long it is, not on how likely it was.
    """
    if isinstance(value, Verdict):
        return {"verdict": value.to_json()}
    if isinstance(value, Rollout):
        tokens = {name: getattr(value, name) for name in _PER_TOKEN}
        return {"rollout": {"messages": _pairs(value.messages), "finish": value.finish, **tokens}}
    if isinstance(value, list | tuple) and all(isinstance(item, Message) for item in value):
        return {"messages": _pairs(value)}
    return value


def decode(data: Any) -> Any:
    """What was given to `encode`."""
    match data:
        case {"verdict": fields}:
            return Verdict.from_json(fields)
        case {"rollout": fields}:
            tokens: dict[str, Any] = {
                name: None if fields[name] is None else tuple(fields[name]) for name in _PER_TOKEN
            }
            return Rollout(_messages(fields["messages"]), fields["finish"], **tokens)
        case {"messages": messages}:
            return _messages(messages)
    return data


def prompt_digest(task: Task[Any]) -> str:
    """Tells whether two processes derived the same task from the same key."""
    return hashlib.sha256(json.dumps(encode(task.prompt)).encode()).hexdigest()


def _pairs(messages: Sequence[Message]) -> list[list[str]]:
    return [[m.role, m.content] for m in messages]


def _messages(pairs: Sequence[Sequence[Any]]) -> tuple[Message, ...]:
    return tuple(Message(role, content) for role, content in pairs)
