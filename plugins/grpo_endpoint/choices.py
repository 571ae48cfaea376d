"""Say what a sampler cannot do, and complete what it did: calls that were asked for, and echoes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

from grpo_core import ToolCall
from grpo_core.protocol.endpoint import RefusedRequestError
from grpo_core.protocol.sampler import Extras, Sampler, takes_extras
from grpo_endpoint.requests import Delta, ServedChoice, ServedRequest

_EXTRAS = {
    "logit_bias": "logit_bias",
    "repetition_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "top_logprobs": "alternatives",
}
"""The fields of `Extras` that clients set, by the names of their parameters."""


def check_sampler(sampler: Sampler, asked: ServedRequest) -> None:
    """Refuse what a sampler cannot do exactly, with the name of the first such parameter.

    Raises:
        RefusedRequestError: there is something.
    """
    if takes_extras(sampler):
        return
    usual = Extras()
    for name, field in _EXTRAS.items():
        if getattr(asked.extras, field) != getattr(usual, field):
            raise RefusedRequestError(f"{name}: this server's sampler cannot do that; leave it out")


def check_bias(asked: ServedRequest, vocabulary: int) -> None:
    """Refuse a bias of tokens that the model does not have.

    Raises:
        RefusedRequestError: there is one.
    """
    if strange := [token for token in asked.extras.logit_bias if token >= vocabulary]:
        raise RefusedRequestError(
            f"logit_bias: it names the token {strange[0]}, but the model's tokens are 0 to "
            f"{vocabulary - 1}"
        )


def with_calls(choice: ServedChoice, called: str) -> ServedChoice:
    """Return a completion that had to call tools with its calls.

    Unfinished JSON stays text, and so do arguments that are no object, where a tool allows that.

    Args:
        choice: the completion: the arguments of the tool, or a list of calls.
        called: the name of the tool; "" for any.
    """
    try:
        value = json.loads(choice.text)
    except (ValueError, RecursionError):
        return choice
    found = [{"name": called, "arguments": value}] if called else value
    if not all(isinstance(call["arguments"], dict) for call in found):
        return choice
    digest = hashlib.sha256(repr(choice.token_ids).encode()).hexdigest()
    calls = tuple(
        ToolCall(call["name"], call["arguments"], f"{digest[:7]}{number:02}")
        for number, call in enumerate(found)
    )
    message = replace(choice.message, content="", tool_calls=calls)
    return replace(choice, message=message, finish="tool_calls")


def behind_echo(echo: Delta, choice: ServedChoice) -> ServedChoice:
    """Return a completion that begins with its prompt."""
    missing = () if choice.alternatives else ((),) * len(choice.tokens)
    return replace(
        choice,
        text=echo.content + choice.text,
        tokens=echo.tokens + choice.tokens,
        logprobs=echo.logprobs + choice.logprobs,  # type: ignore[arg-type]
        alternatives=echo.alternatives + (choice.alternatives or missing),
    )
