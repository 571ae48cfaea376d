"""What travels between the trainer and a worker: length-prefixed JSON, so that no pickle of a worker is ever trusted."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from io import RawIOBase
from typing import Any

from grpo_core.types import Message, Rollout, Task, TaskKey

MAX_FRAME_BYTES = 64_000_000
_HEADER_BYTES = 8

Prompt = str | tuple[Message, ...]


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


def key_to_json(key: TaskKey) -> dict[str, Any]:
    return asdict(key)


def key_from_json(data: Mapping[str, Any]) -> TaskKey:
    return TaskKey(**data)


def messages_to_json(messages: Sequence[Message]) -> list[list[str]]:
    return [[m.role, m.content] for m in messages]


def messages_from_json(data: Sequence[Sequence[Any]]) -> tuple[Message, ...]:
    return tuple(Message(role, content) for role, content in data)


def prompt_to_json(prompt: Prompt) -> str | list[list[str]]:
    return prompt if isinstance(prompt, str) else messages_to_json(prompt)


def prompt_from_json(data: str | Sequence[Sequence[Any]]) -> Prompt:
    return data if isinstance(data, str) else messages_from_json(data)


def prompt_digest(task: Task[Any]) -> str:
    """Tells whether two processes derived the same task from the same key."""
    return hashlib.sha256(json.dumps(prompt_to_json(task.prompt)).encode()).hexdigest()


def rollout_to_json(rollout: Rollout) -> dict[str, Any]:
    """Without prompt_ids and logprobs: a verdict may depend on what was said and how long it is, not on how likely it was."""
    return {
        "messages": messages_to_json(rollout.messages),
        "finish": rollout.finish,
        "token_ids": list(rollout.token_ids),
        "trainable": list(rollout.trainable),
        "positions": None if rollout.positions is None else list(rollout.positions),
    }


def rollout_from_json(data: Mapping[str, Any]) -> Rollout:
    return Rollout(
        messages=messages_from_json(data["messages"]),
        finish=data["finish"],
        token_ids=tuple(data["token_ids"]),
        trainable=tuple(data["trainable"]),
        positions=None if data["positions"] is None else tuple(data["positions"]),
    )
