"""Reads the body of an endpoint's response, whatever its shape."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from grpo_core.calls.api_client import error_text

MAX_TOKENS_COUNTED = 10**9
"""A token count above this for one answer is not plausible and is ignored."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a model."""

    content: str | None = None
    """The answer's text, if there is one."""
    refused: str = ""
    """Why the endpoint or the model refuses the text; empty if it does not."""
    fault: str = ""
    """What is wrong with the body, which it quotes; empty if nothing is."""
    tokens_in: int = 0
    """Tokens of the prompt."""
    tokens_out: int = 0
    """Tokens of the answer."""


def read_answer(body: bytes) -> Answer:
    """Parse a body; if it does not have the shape of an answer, the result has a `fault`."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return Answer(fault=f"the body is not JSON: {body.decode(errors='replace')}")
    if not isinstance(value, dict):
        return Answer(fault=f"the body is not a JSON object: {body.decode(errors='replace')}")
    usage = value.get("usage")
    counts: dict[str, Any] = usage if isinstance(usage, dict) else {}
    tokens_in = _count(counts.get("prompt_tokens"))
    tokens_out = _count(counts.get("completion_tokens"))
    choices = value.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        fault = f"the answer is empty: {error_text(body)}"
        return Answer(fault=fault, tokens_in=tokens_in, tokens_out=tokens_out)
    content, refusal = message.get("content"), message.get("refusal")
    refused = refusal if isinstance(refusal, str) and refusal else ""
    if choice.get("finish_reason") == "content_filter":
        refused = refused or "a content filter stopped the answer"
    text = content if isinstance(content, str) else None
    return Answer(text, refused, tokens_in=tokens_in, tokens_out=tokens_out)


def _count(value: object) -> int:
    """Return a count of tokens, or 0 for a value that cannot be one."""
    plausible = type(value) is int and 0 <= value <= MAX_TOKENS_COUNTED
    return value if plausible and isinstance(value, int) else 0
