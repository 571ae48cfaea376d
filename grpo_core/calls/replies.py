"""Make the replies of a worker, and validate them in the trainer before they are used.

A worker runs untrusted code, so it may send anything. A reply is one JSON object with the id of
its request, either a `value` or an `error`, and the memory that the worker uses:

    {"id": "5f0c...", "value": ..., "memory_mb": 61.5}

The id of a request is random, so that no reply to a later request can be prepared in advance.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from typing import Any

from grpo_core.calls.isolation import clip

MAX_REPLY_BYTES = 8_000_000
"""Limited because parsing JSON takes up to 20 times its size in memory, for each worker at once."""
_MAX_MEMORY_MB = 1e12
"""A larger number in a reply is refused."""


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
    """Return the encoded reply to a request.

    Raises:
        TypeError, ValueError: `value` cannot be written as JSON.
    """
    outcome = {"value": value} if error is None else {"error": clip(error)}
    reply = {"id": request_id, **outcome, "memory_mb": memory_mb}
    try:
        return _ENCODER.encode(reply).encode("ascii")
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_reply(body: bytes, request_id: str) -> Reply:
    """Return the reply in `body`.

    Raises:
        InvalidReplyError: `body` is not a reply to this request.
    """
    reply = _parse_object(body)
    if reply.get("id") != request_id:
        raise InvalidReplyError("it does not have the id of the request, so it answers another one")
    outcome_keys = reply.keys() - {"id", "memory_mb"}
    if outcome_keys not in ({"value"}, {"error"}):
        names = clip(", ".join(sorted(outcome_keys)), 200) or "neither"
        raise InvalidReplyError(f"it must have either `value` or `error`, and has {names}")
    error = reply.get("error")
    if "error" in reply and not isinstance(error, str):
        raise InvalidReplyError(f"its error is {_type_name(error)}; it must be a string")
    memory_mb: Any = reply.get("memory_mb")
    if type(memory_mb) not in (int, float) or not 0 <= memory_mb <= _MAX_MEMORY_MB:
        raise InvalidReplyError("its memory_mb is not a number of megabytes")
    return Reply(reply.get("value"), None if error is None else clip(error), float(memory_mb))


def _parse_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object in `body`; raise InvalidReplyError if it is anything else."""
    try:
        reply = _DECODER.decode(body.decode("ascii"))
    except RecursionError:
        raise InvalidReplyError("it is nested too deeply") from None
    except ValueError as error:  # also for a number with too many digits and for bytes beyond ASCII
        raise InvalidReplyError(f"it is not JSON: {clip(str(error), 200)}") from None
    if not isinstance(reply, dict):
        raise InvalidReplyError(f"it is {_type_name(reply)}; it must be an object")
    return reply


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


_ENCODER = json.JSONEncoder(allow_nan=False)
_DECODER = json.JSONDecoder(
    object_pairs_hook=refuse_duplicates,
    parse_constant=refuse_constant,
)
