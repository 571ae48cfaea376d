"""Define the messages between the trainer and a worker: length-prefixed JSON, never pickles.

A request is an object with an `id`; `grpo_core.calls.replies` describes the replies.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, Protocol

from grpo_core.protocol.types import Message, Rollout, Task, Verdict

MAX_FRAME_BYTES = 64_000_000
_HEADER_BYTES = 8
_TOKEN_FIELDS = ("token_ids", "trainable", "positions")
"""The fields of a Rollout that have one entry per token and are sent to a worker."""


class Readable(Protocol):
    """Reads from a raw stream."""

    def read(self, size: int, /) -> bytes | None:
        """Return at most `size` bytes; None or b"" counts as the end of the stream."""
        ...


class Writable(Protocol):
    """Writes to a raw stream."""

    def write(self, data: memoryview, /) -> int | None:
        """Return how many bytes of `data` the stream took."""
        ...


def write_frame(stream: Writable, body: bytes, *, limit: int = MAX_FRAME_BYTES) -> None:
    """Send one message.

    Raises:
        OSError: the reader is gone.
        ValueError: the message is longer than `limit` bytes.
    """
    if len(body) > limit:
        size = f"{len(body):,} bytes is too large for the pipe (at most {limit:,})"
        raise ValueError(f"a message of {size}; keep `detail` small")
    unsent = memoryview(len(body).to_bytes(_HEADER_BYTES, "big") + body)
    while unsent:
        unsent = unsent[stream.write(unsent) or 0 :]


def read_frame(stream: Readable, *, limit: int = MAX_FRAME_BYTES) -> bytes:
    """Return the next message.

    Raises:
        EOFError: the stream has ended.
        ValueError: the header announces more than `limit` bytes; none of them are read.
    """
    size = int.from_bytes(_read_exactly(stream, _HEADER_BYTES), "big")
    if size > limit:
        raise ValueError(f"its header announces {size:,} bytes; at most {limit:,} are read")
    return _read_exactly(stream, size)


def _read_exactly(stream: Readable, size: int) -> bytes:
    """Return the next `size` bytes; raise EOFError if the stream ends before them."""
    parts: list[bytes] = []
    while size > 0:
        part = stream.read(min(size, 1_000_000))
        if not part:
            raise EOFError("the stream has ended")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def encode(value: Any) -> Any:
    """Return JSON data for an argument or a result of an environment.

    A Rollout, a Verdict and messages are marked with their type; plain values stay as they are.
    A Rollout is sent without prompt_ids and logprobs: a verdict may depend on the text and its
    length, not on its probability.
    """
    if isinstance(value, Verdict):
        return {"verdict": value.to_json()}
    if isinstance(value, Rollout):
        tokens = {name: getattr(value, name) for name in _TOKEN_FIELDS}
        messages = _role_content_pairs(value.messages)
        return {"rollout": {"messages": messages, "finish": value.finish, **tokens}}
    if isinstance(value, list | tuple) and all(isinstance(item, Message) for item in value):
        return {"messages": _role_content_pairs(value)}
    return value


def decode(data: Any) -> Any:
    """Return the value from which `encode` made `data`."""
    match data:
        case {"verdict": fields}:
            return Verdict.from_json(fields)
        case {"rollout": fields}:
            tokens: dict[str, Any] = {
                name: None if fields[name] is None else tuple(fields[name])
                for name in _TOKEN_FIELDS
            }
            return Rollout(_messages_from(fields["messages"]), fields["finish"], **tokens)
        case {"messages": pairs}:
            return _messages_from(pairs)
    return data


def prompt_digest(task: Task[Any]) -> str:
    """Return a digest of the prompt.

    Two processes compare it to check that they derived the same task from the same key.
    """
    return hashlib.sha256(json.dumps(encode(task.prompt)).encode()).hexdigest()


def _role_content_pairs(messages: Sequence[Message]) -> list[list[str]]:
    return [[message.role, message.content] for message in messages]


def _messages_from(pairs: Sequence[Sequence[Any]]) -> tuple[Message, ...]:
    return tuple(Message(role, content) for role, content in pairs)
