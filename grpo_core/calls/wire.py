"""Define the messages between the trainer and a worker: length-prefixed JSON, never pickles.

A request is an object with an `id`, which is random, so that no reply to a later request can be
prepared in advance. A reply is an object with the id of its request, either a `value` or an
`error`, and the memory that the worker uses:

    {"id": "5f0c...", "value": ..., "memory_mb": 61.5}

Beside an error stands its `kind` if an answer may be blamed for it. `output` is what the code of
the environment printed, as far as the worker knows that it belongs to this request.

A worker runs untrusted code, so it may send anything; the trainer validates what it gets.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_core.calls.isolation import clip
from grpo_core.calls.output import KEPT
from grpo_core.protocol.types import Message, Role, Rollout, Segment, Task, ToolCall, Verdict

MAX_FRAME_BYTES = 64_000_000
MAX_REPLY_BYTES = 8_000_000
"""Limited because parsing JSON takes up to 20 times its size in memory, for each worker at once."""
_MAX_MEMORY_MB = 1e12
"""A larger number in a reply is refused."""
_MAX_KIND = 100
"""The most characters of an error's kind."""
_MAX_OUTPUT = 2 * KEPT
"""The most characters that are read of what was printed."""
_HEADER_BYTES = 8
_TOKEN_FIELDS = ("token_ids", "trainable", "positions")
"""The fields of a Rollout or a Segment that have one entry per token and are sent to a worker."""


Read = Callable[[int], bytes | None]
"""Returns at most so many bytes of a raw stream; None or b"" counts as its end."""
Write = Callable[[memoryview], int | None]
"""Writes to a raw stream, and returns how many bytes the stream took."""


def write_frame(write: Write, body: bytes, *, limit: int = MAX_FRAME_BYTES) -> None:
    """Send one message.

    Raises:
        OSError: the reader is gone.
        ValueError: the message is longer than `limit` bytes.
    """
    if len(body) > limit:
        raise ValueError(
            f"a message of {len(body):,} bytes is too large for the pipe (at most {limit:,}); "
            "keep `detail` small"
        )
    unsent = memoryview(len(body).to_bytes(_HEADER_BYTES, "big") + body)
    while unsent:
        unsent = unsent[write(unsent) or 0 :]


def read_frame(read: Read, *, limit: int = MAX_FRAME_BYTES) -> bytes:
    """Return the next message.

    Raises:
        EOFError: the stream has ended.
        ValueError: the header announces more than `limit` bytes; none of them are read.
    """
    size = int.from_bytes(_read_exactly(read, _HEADER_BYTES), "big")
    if size > limit:
        raise ValueError(f"its header announces {size:,} bytes; at most {limit:,} are read")
    return _read_exactly(read, size)


def _read_exactly(read: Read, size: int) -> bytes:
    """Return the next `size` bytes; raise EOFError if the stream ends before them."""
    parts: list[bytes] = []
    while size > 0:
        part = read(min(size, 1_000_000))
        if not part:
            raise EOFError("the stream has ended")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def encode(value: Any) -> Any:
    """Return JSON data for an argument or a result of an environment.

    A Rollout, a Verdict and messages are marked with their type; plain values stay as they are.
    A Rollout and its segments are sent without prompt_ids and logprobs: a verdict may depend on the
    text and its length, not on its probability.
    """
    if isinstance(value, Verdict):
        return {"verdict": value.to_json()}
    if isinstance(value, Rollout):
        return {
            "rollout": {
                "messages": _message_fields(value.messages),
                "finish": value.finish,
                **_token_fields(value),
                **({"reply_dropped": True} if value.reply_dropped else {}),
                **_agent_fields(value),
            }
        }
    if isinstance(value, list | tuple) and all(isinstance(item, Message) for item in value):
        return {"messages": _message_fields(value)}
    return value


def decode(data: Any) -> Any:
    """Return the value from which `encode` made `data`."""
    match data:
        case {"verdict": fields}:
            return Verdict.from_json(fields)
        case {"rollout": fields}:
            return Rollout(
                _messages_from(fields["messages"]),
                fields["finish"],
                **_tokens_from(fields),
                reply_dropped=fields.get("reply_dropped", False),
                turn_lengths=tuple(fields.get("turn_lengths", ())),
                later_segments=tuple(
                    Segment(prompt_ids=(), logprobs=(), **_tokens_from(segment))
                    for segment in fields.get("later_segments", ())
                ),
                returned=fields.get("returned"),
            )
        case {"messages": messages}:
            return _messages_from(messages)
    return data


def prompt_digest(task: Task[Any]) -> str:
    """Return a digest of the prompt.

    Two processes compare it to check that they derived the same task from the same key.
    """
    return hashlib.sha256(json.dumps(encode(task.prompt)).encode()).hexdigest()


def _token_fields(tokens: Rollout | Segment) -> dict[str, Any]:
    """Return what is sent of the tokens of a rollout or a segment."""
    return {name: getattr(tokens, name) for name in _TOKEN_FIELDS}


def _tokens_from(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of which `_token_fields` made the fields."""
    return {name: None if fields[name] is None else tuple(fields[name]) for name in _TOKEN_FIELDS}


def _agent_fields(rollout: Rollout) -> dict[str, Any]:
    """Return what is sent only of the rollouts of agents."""
    fields: dict[str, Any] = {} if rollout.returned is None else {"returned": rollout.returned}
    if not rollout.shows_turns:
        fields["turn_lengths"] = rollout.turn_lengths
        fields["later_segments"] = [_token_fields(segment) for segment in rollout.later_segments]
    return fields


def _message_fields(messages: Sequence[Message]) -> list[list[Any]]:
    """Return role and content of each message, and its tool calls and thoughts if it has any.

    Fields at the end that are empty are left out.
    """
    return [[message.role, message.content, *_further_fields(message)] for message in messages]


def _further_fields(message: Message) -> list[Any]:
    calls = message.tool_calls
    written = None if calls is None else [call.to_json() for call in calls]
    if any(message.thought_marks):
        return [written, message.thoughts, list(message.thought_marks)]
    if message.thoughts:
        return [written, message.thoughts]
    return [] if written is None else [written]


def _messages_from(messages: Sequence[Sequence[Any]]) -> tuple[Message, ...]:
    """Return the messages of which `_message_fields` made the fields."""
    return tuple(_message_from(*fields) for fields in messages)


def _message_from(
    role: Role,
    content: str,
    calls: Any = None,
    thoughts: str = "",
    marks: Sequence[str] = ("", ""),
) -> Message:
    read = None if calls is None else tuple(ToolCall(**call) for call in calls)
    before, after = marks
    return Message(role, content, read, thoughts, (before, after))


class InvalidReplyError(Exception):
    """A worker sent something that is not a reply to the request; the message says why."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Holds a reply of the correct form; its value may still be any JSON value."""

    value: Any
    error: str | None
    """Why there is no value, as a short text that can be encoded; None if there is one."""
    memory_mb: float
    """The memory that the worker uses."""
    kind: str = ""
    """The kind of the error, if an answer may be blamed for it."""
    output: str = ""
    """What the environment's code printed meanwhile."""
    among_others: bool = False
    """Whether threads or processes were running meanwhile that earlier requests had left behind."""


def make_reply(
    request_id: str,
    *,
    memory_mb: float,
    value: Any = None,
    error: str | None = None,
    kind: str = "",
    **further: Any,
) -> bytes:
    """Return the encoded reply to a request; `further` are fields of `Reply` with their values.

    Raises:
        TypeError, ValueError: `value` cannot be written as JSON.
    """
    outcome = {"value": value} if error is None else {"error": clip(error)}
    if error is not None and kind:
        outcome["kind"] = kind
    reply = {"id": request_id, **outcome, "memory_mb": memory_mb, **further}
    try:
        return json.dumps(reply, allow_nan=False).encode("ascii")
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object in `body`, which a worker has sent.

    Raises:
        InvalidReplyError: `body` is none.
    """
    try:
        fields = json.loads(
            body.decode("ascii"),
            object_pairs_hook=refuse_duplicates,
            parse_constant=refuse_constant,
        )
    except RecursionError:
        raise InvalidReplyError("it is nested too deeply") from None
    except ValueError as fault:  # also for a number with too many digits and for bytes beyond ASCII
        raise InvalidReplyError(f"it is not JSON: {clip(str(fault), 200)}") from None
    if not isinstance(fields, dict):
        raise InvalidReplyError(f"it is {_type_name(fields)}; it must be an object")
    return fields


def parse_reply(body: bytes, request_id: str) -> Reply:
    """Return the reply in `body`.

    Raises:
        InvalidReplyError: `body` is not a reply to this request.
    """
    return reply_from(parse_object(body), request_id)


def reply_from(reply: Mapping[str, Any], request_id: str) -> Reply:
    """Return the reply whose fields a worker has sent; as `parse_reply`."""
    if reply.get("id") != request_id:
        raise InvalidReplyError("it does not have the id of the request, so it answers another one")
    outcome_keys = reply.keys() - {"id", "memory_mb", "output", "among_others"}
    if outcome_keys not in ({"value"}, {"error"}, {"error", "kind"}):
        names = clip(", ".join(sorted(outcome_keys)), 200) or "neither"
        raise InvalidReplyError(f"it must have either `value` or `error`, and has {names}")
    error = reply.get("error")
    if "error" in reply and not isinstance(error, str):
        raise InvalidReplyError(f"its error is {_type_name(error)}; it must be a string")
    kind = reply.get("kind", "")
    if not isinstance(kind, str):
        raise InvalidReplyError(f"its kind is {_type_name(kind)}; it must be a string")
    memory_mb: Any = reply.get("memory_mb")
    if type(memory_mb) not in (int, float) or not 0 <= memory_mb <= _MAX_MEMORY_MB:
        raise InvalidReplyError("its memory_mb is not a number of megabytes")
    return Reply(
        reply.get("value"),
        None if error is None else clip(error),
        float(memory_mb),
        clip(kind, _MAX_KIND),
        output[-_MAX_OUTPUT:] if isinstance(output := reply.get("output"), str) else "",
        reply.get("among_others") is True,
    )


def refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the fields of a JSON object; raise ValueError if a key occurs twice."""
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("an object has the same key twice")
    return fields


def refuse_constant(name: str) -> None:
    """Raise ValueError for NaN and the infinities, which JSON does not define."""
    raise ValueError(f"{name} is not JSON")


def _type_name(value: object) -> str:
    """Return the type of a JSON value with its article, such as "a list"."""
    return "null" if value is None else f"a {type(value).__name__}"
