"""Reads the body of an endpoint's response, whatever its shape."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grpo_core.calls.api_client import FailureKind, error_text, kind_of_failure

MAX_TOKENS_COUNTED = 10**9
"""A token count above this for one answer is not plausible and is ignored."""
_THOUGHT_FIELDS = ("reasoning_content", "reasoning", "thinking", "reasoning_details")
"""Fields in which servers put a model's thoughts."""


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """The answer of a model."""

    content: str | None = None
    """The answer's text, if there is one."""
    refused: str = ""
    """Why the endpoint or the model refuses the text; empty if it does not."""
    is_cut: bool = False
    """Whether the limit of tokens ended the answer."""
    fault: str = ""
    """What is wrong with the body, which it quotes; empty if nothing is."""
    kind: FailureKind = FailureKind.UNREADABLE
    """The kind of failure if there is a fault."""
    status: int | None = None
    """The status that the body of a fault names."""
    has_thoughts: bool = False
    """Whether the endpoint sends thoughts in a field of their own."""
    tokens_in: int = 0
    """Tokens of the prompt."""
    tokens_out: int = 0
    """Tokens of the answer."""


def read_answer(body: bytes) -> ModelAnswer:
    """Parse a body; if it does not have the shape of an answer, the result has a `fault`."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return ModelAnswer(fault=f"the body is not JSON: {body.decode(errors='replace')}")
    if not isinstance(value, dict):
        return ModelAnswer(fault=f"the body is not a JSON object: {body.decode(errors='replace')}")
    usage = value.get("usage")
    counts: dict[str, Any] = usage if isinstance(usage, dict) else {}
    tokens_in = _count(counts.get("prompt_tokens"))
    tokens_out = _count(counts.get("completion_tokens"))
    choices = value.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        text = error_text(body)
        return ModelAnswer(
            fault=f"the answer is empty: {text}",
            kind=_kind_of_error(value, text),
            status=_status_of_error(value),
            tokens_in=tokens_in,
            tokens_out=tokens_out,
        )
    finish, refusal = choice.get("finish_reason"), message.get("refusal")
    refused = refusal if isinstance(refusal, str) and refusal else ""
    if finish == "content_filter":
        refused = refused or "a content filter stopped the answer"
    return ModelAnswer(
        _text(message.get("content")),
        refused,
        is_cut=finish == "length",
        has_thoughts=any(message.get(name) for name in _THOUGHT_FIELDS),
        tokens_in=tokens_in,
        tokens_out=tokens_out,
    )


def _text(content: object) -> str | None:
    """Return the text of a message's content, also of one in parts; thoughts are no part of it."""
    if isinstance(content, list):
        parts = [
            part.get("text")
            for part in content
            if isinstance(part, dict) and part.get("type", "text") in ("text", "output_text")
        ]
        content = "".join(text for text in parts if isinstance(text, str))
    return content if isinstance(content, str) else None


def _kind_of_error(value: Mapping[str, Any], text: str) -> FailureKind:
    """Return the kind of an error that a body with a status of success reports, as proxies do."""
    if value.get("error") is None:
        return FailureKind.UNREADABLE
    if (status := _status_of_error(value)) is not None:
        return kind_of_failure(status, text, has_pause=False)
    is_load = kind_of_failure(500, text, has_pause=False) is FailureKind.LIMITED
    return FailureKind.LIMITED if is_load else FailureKind.UNREADABLE


def _status_of_error(value: Mapping[str, Any]) -> int | None:
    """Return the HTTP status that an error in a body names, if it names one."""
    error = value.get("error")
    code = error.get("code") if isinstance(error, dict) else None
    if isinstance(code, str) and code.isascii() and code.isdecimal():
        code = int(code[:4])
    return code if type(code) is int and 400 <= code < 600 else None


def _count(value: object) -> int:
    """Return a count of tokens, or 0 for a value that cannot be one."""
    plausible = type(value) is int and 0 <= value <= MAX_TOKENS_COUNTED
    return value if plausible and isinstance(value, int) else 0
