"""The replies of a worker: made there, and checked here before anything is believed of them.

A worker runs code that nobody trusts, so anything may come out of it. A reply is one JSON object
with the id of its request, either a `value` or an `error`, and the memory that the worker holds:

    {"id": "5f0c...", "value": ..., "memory_mb": 61.5}

The id of a request is random, so that nothing can be prepared that a later request would accept.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from typing import Any

from grpo_core.calls.isolation import clip

MAX_REPLY_BYTES = 8_000_000
"""Reading JSON takes up to 20 times its size in memory, for each worker at once."""
_MAX_MEMORY_MB = 1e12


class InvalidReplyError(Exception):
    """A worker sent something that does not answer the request; the message says why."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply that keeps the form. Its value may still be anything that JSON can say."""

    value: Any
    error: str | None
    """Why there is no value, in a bounded text that can be printed; None if there is one."""
    memory_mb: float


def new_request_id() -> str:
    """Return an id that no worker can guess."""
    return secrets.token_hex(16)


def make_reply(
    request_id: str,
    *,
    memory_mb: float,
    value: Any = None,
    error: str | None = None,
) -> bytes:
    """Return the reply to a request; raises TypeError or ValueError if `value` is not JSON."""
    outcome = {"value": value} if error is None else {"error": clip(error)}
    reply = {"id": request_id, **outcome, "memory_mb": memory_mb}
    try:
        return _ENCODER.encode(reply).encode("ascii")
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_reply(body: bytes, request_id: str) -> Reply:
    """Return the reply in `body`; raises InvalidReplyError if it is none to this request."""
    reply = _parse_object(body)
    if reply.get("id") != request_id:
        raise InvalidReplyError("it does not have the id of the request, so it answers another one")
    outcome = reply.keys() - {"id", "memory_mb"}
    if outcome not in ({"value"}, {"error"}):
        names = clip(", ".join(sorted(outcome)), 200) or "neither"
        raise InvalidReplyError(f"it must have either `value` or `error`, and has {names}")
    error = reply.get("error")
    if "error" in reply and not isinstance(error, str):
        raise InvalidReplyError(f"its error is {_kind(error)}; it must be a text")
    memory_mb: Any = reply.get("memory_mb")
    if type(memory_mb) not in (int, float) or not 0 <= memory_mb <= _MAX_MEMORY_MB:
        raise InvalidReplyError("its memory_mb is no number of megabytes")
    return Reply(reply.get("value"), None if error is None else clip(error), float(memory_mb))


def _parse_object(body: bytes) -> dict[str, Any]:
    try:
        reply = _DECODER.decode(body.decode("ascii"))
    except RecursionError:
        raise InvalidReplyError("it is nested too deeply") from None
    except ValueError as error:  # also of a number with too many digits, and of bytes beyond ASCII
        raise InvalidReplyError(f"it is not JSON: {clip(str(error), 200)}") from None
    if not isinstance(reply, dict):
        raise InvalidReplyError(f"it is {_kind(reply)}; it must be an object")
    return reply


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("an object has the same key twice")
    return fields


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _kind(value: object) -> str:
    return "null" if value is None else f"a {type(value).__name__}"


_ENCODER = json.JSONEncoder(allow_nan=False)
_DECODER = json.JSONDecoder(
    object_pairs_hook=_without_duplicates,
    parse_constant=_refuse_constant,
)
