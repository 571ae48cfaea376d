"""What travels between the trainer and a worker: length-prefixed JSON, so that no pickle of a worker is ever trusted."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from io import RawIOBase
from typing import Any

from grpo_core.types import Message, Rollout, Task, Verdict

MAX_FRAME_BYTES = 64_000_000
_HEADER_BYTES = 8
_PER_TOKEN = ("token_ids", "trainable", "positions")


def write_frame(stream: RawIOBase, message: Mapping[str, Any]) -> None:
    """Send one message; raises OSError when nobody reads any more, ValueError or TypeError when it is no JSON or too large."""
    body = json.dumps(message).encode()
    if len(body) > MAX_FRAME_BYTES:
        raise ValueError(f"a message of {len(body):,} bytes is too large for the pipe (at most {MAX_FRAME_BYTES:,}); keep `detail` small")
    rest = memoryview(len(body).to_bytes(_HEADER_BYTES, "big") + body)
    while rest:
        rest = rest[stream.write(rest) or 0 :]


def read_frame(stream: RawIOBase) -> dict[str, Any]:
    """The next message; raises EOFError at the end of the stream or when what comes is no message."""
    size = int.from_bytes(_read_exactly(stream, _HEADER_BYTES), "big")
    if size > MAX_FRAME_BYTES:
        raise EOFError("the stream holds something that is no message")
    message: dict[str, Any] = json.loads(_read_exactly(stream, size))
    return message


def _read_exactly(stream: RawIOBase, size: int) -> bytes:
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
            tokens: dict[str, Any] = {name: None if fields[name] is None else tuple(fields[name]) for name in _PER_TOKEN}
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
