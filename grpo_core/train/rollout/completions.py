"""Turn requests of an endpoint's clients into tokens, and completions into their answers."""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeGuard, cast

from grpo_core.calls.schema_limits import schema_text
from grpo_core.engine.models import pieces
from grpo_core.engine.policy.causal import Policy
from grpo_core.protocol.endpoint import Choice, CompletionRequest, RefusedRequestError
from grpo_core.protocol.errors import ConfigError, UserError
from grpo_core.protocol.sampler import (
    Completion,
    Request,
    Sampler,
    SamplingParams,
    UnsupportedSchemaError,
    follows_schemas,
)
from grpo_core.protocol.types import Message, ToolCall
from grpo_core.train.rollout.draws import draw_uniforms

_LOGGER = logging.getLogger(__name__)
_LEAST_TEMPERATURE = 1e-6
"""By a lower one logits are no longer finite in float32; it draws what 0 does."""
_LEAST_TOP_P = 1e-6
"""A lower one is 0 in float32, which keeps no token; it keeps the most likely one, as this does."""


def prompt_tokens(
    policy: Policy,
    request: CompletionRequest,
    arguments: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[int, ...]:
    """Return the tokens (P,) that a request asks to continue.

    Args:
        policy: whose tokens they are.
        request: the request.
        arguments: arguments of the chat template besides those of the settings.

    Raises:
        RefusedRequestError: it has none, they are not the model's, or its chat template refuses
            the messages.
    """
    prompt = request.prompt
    check_length(policy, request)
    try:
        if isinstance(prompt, str):
            prompt_ids = policy.encode(prompt)
        elif is_chat(prompt):
            prompt_ids = policy.encode_chat(prompt, tools=request.tools, arguments=arguments)
        else:
            prompt_ids = _checked_tokens(policy, cast(tuple[int, ...], prompt))
    except ConfigError as error:
        raise RefusedRequestError(str(error)) from None
    except (ArithmeticError, LookupError, RecursionError, ValueError) as error:
        raise RefusedRequestError(
            f"the model's chat template cannot write these messages: {error!s:.200}"
        ) from None
    if not prompt_ids:
        raise RefusedRequestError("the prompt has no tokens; send a text that is not empty")
    return prompt_ids


def check_length(policy: Policy, request: CompletionRequest) -> None:
    """Refuse a text that has too many tokens, whichever they are, before it is tokenised.

    Raises:
        RefusedRequestError: it does not fit the model's context.
    """
    if policy.context is None:
        return
    prompt = request.prompt
    least = len(prompt)  # a message or a token has one token at least
    if isinstance(prompt, str):
        least = len(prompt) // policy.longest_token
    elif is_chat(prompt):
        characters = sum(len(message.content) for message in prompt)
        least = max(least, characters // policy.longest_token)
    if least > policy.context:
        raise RefusedRequestError(
            f"the prompt has {least} tokens or more, which exceed the model's context of "
            f"{policy.context} tokens; shorten it",
            code="context_length_exceeded",
        )


def token_budget(
    policy: Policy, request: CompletionRequest, prompt_ids: Sequence[int], *, default: int
) -> int:
    """Return the most tokens of a completion of the request.

    Args:
        policy: its context is the limit.
        request: the request.
        prompt_ids: the tokens (P,) that it continues.
        default: the budget of a request that names none; it is less where the context has less
            room.

    Raises:
        RefusedRequestError: the context has no room for the tokens that the request names, or for
            any.
    """
    if policy.context is None:
        return request.max_tokens or default
    room = policy.context - len(prompt_ids)
    wanted = request.max_tokens or 1
    if wanted > room:
        raise RefusedRequestError(
            f"a prompt of {len(prompt_ids)} tokens and {wanted} new ones exceed the model's "
            f"context of {policy.context} tokens; shorten the messages or lower max_tokens",
            code="context_length_exceeded",
        )
    return request.max_tokens or min(default, room)


def sampling_params(request: CompletionRequest, defaults: SamplingParams) -> SamplingParams:
    """Return how the completions of a request are drawn; what it leaves open is in `defaults`."""
    temperature = defaults.temperature if request.temperature is None else request.temperature
    return replace(
        defaults,
        temperature=temperature if temperature >= _LEAST_TEMPERATURE else 0.0,
        top_p=defaults.top_p if request.top_p is None else max(request.top_p, _LEAST_TOP_P),
        stop=request.stop or defaults.stop,
    )


def random_key(seed: int | None, number: int) -> int:
    """Return 128 bits that fix the random numbers of a completion.

    Args:
        seed: the seed of its request; None: the bits are drawn at random.
        number: number of the completion among those of the request.
    """
    if seed is None:
        return secrets.randbits(128)
    digest = hashlib.sha256(f"endpoint {seed} {number}".encode()).digest()
    return int.from_bytes(digest[:16], "big")


async def generate(sampler: Sampler, request: Request) -> Completion:
    """Return the completion of a request.

    Raises:
        RefusedRequestError: it has a JSON schema, which the sampler cannot follow, or not with this
            model.
        Exception: it cannot be sampled.
    """
    if request.json_schema is not None and not follows_schemas(sampler):
        raise RefusedRequestError(
            "response_format: this sampler cannot hold completions to JSON; leave it out"
        )
    try:
        if request.json_schema is not None:
            schema_text(request.json_schema)  # no sampler is asked to follow what is too large
        return await sampler.generate(request)
    except (UnsupportedSchemaError, UserError) as error:
        if request.json_schema is None:
            raise
        raise RefusedRequestError(f"response_format: {error}") from None


def sampler_request(
    prefix: tuple[int, ...],
    params: SamplingParams,
    *,
    key: int,
    count: int,
    json_schema: Mapping[str, Any] | None = None,
) -> Request:
    """Return the sampler's request for at most `count` tokens after `prefix`.

    Args:
        prefix: the tokens (P,) to continue.
        params: how tokens are drawn.
        key: 128 bits that fix the random numbers.
        count: the budget of tokens.
        json_schema: what the completion has to be; None: any text.
    """
    seed = key & (2**64 - 1)
    return Request(prefix, draw_uniforms(key, count), params, seed, json_schema)


def make_choice(
    policy: Policy,
    prompt_ids: Sequence[int],
    completion: Completion,
    *,
    stop: Sequence[str] = (),
    tools: Sequence[Mapping[str, Any]] = (),
    may_think: bool = True,
) -> Choice:
    """Return a completion as the client gets it.

    The message has the thoughts apart.

    Args:
        policy: the policy whose tokens these are.
        prompt_ids: the tokens (P,) that were continued.
        completion: the tokens that were drawn.
        stop: the strings that end a completion.
        tools: JSON schemas of the functions that the policy may call.
        may_think: whether it may begin with thoughts (see `may_think`).
    """
    try:
        return _choice(policy, prompt_ids, completion, stop=stop, tools=tools, may_think=may_think)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError):
        if not tools:
            raise
        _LOGGER.debug("an answer cannot be read with the tools of its request", exc_info=True)
        raise RefusedRequestError(
            "tools: calls of these tools cannot be read in the answer; check that parameters are "
            "JSON schemas"
        ) from None


def _choice(
    policy: Policy,
    prompt_ids: Sequence[int],
    completion: Completion,
    *,
    stop: Sequence[str],
    tools: Sequence[Mapping[str, Any]],
    may_think: bool,
) -> Choice:
    """Return what `make_choice` returns, or raise whatever strange tools lead to."""
    token_ids = completion.token_ids
    written = policy.completion_text(prompt_ids, token_ids)
    text = _before_stop(written, stop)
    message = policy.split(text, prompt_ids) if may_think else Message("assistant", text)
    beside, calls = "", tuple[ToolCall, ...]()
    if tools:
        beside, calls = policy.split_calls(policy.split(written, prompt_ids).content, tools=tools)
    if calls:
        # The ids depend on nothing but the tokens: they may become a part of later prompts.
        digest = hashlib.sha256(repr((tuple(prompt_ids), token_ids)).encode()).hexdigest()
        numbered = [replace(call, id=f"{digest[:7]}{place:02}") for place, call in enumerate(calls)]
        message = replace(message, content=_before_stop(beside, stop), tool_calls=tuple(numbered))
    return Choice(
        text=text,
        message=message,
        finish="tool_calls" if calls else "length" if completion.finish == "length" else "stop",
        token_ids=token_ids,
        tokens=tuple(pieces.decode(policy.tokenizer, [token]) for token in token_ids),
        logprobs=completion.logprobs,
    )


def may_think(request: CompletionRequest) -> bool:
    """Return whether a completion may begin with thoughts.

    What continues a text or tokens is raw text, and what has to be JSON is nothing else.
    """
    return is_chat(request.prompt) and request.json_schema is None


def is_chat(prompt: object) -> TypeGuard[tuple[Message, ...]]:
    """Return whether a prompt consists of messages."""
    return isinstance(prompt, tuple) and any(isinstance(part, Message) for part in prompt[:1])


def _checked_tokens(policy: Policy, token_ids: Sequence[int]) -> tuple[int, ...]:
    """Return token ids that a client sent.

    Raises:
        RefusedRequestError: the model has no such tokens.
    """
    count = policy.model.config.get_text_config(decoder=True).vocab_size
    if strange := [token for token in token_ids if not 0 <= token < count]:
        raise RefusedRequestError(
            f"the prompt has the token {strange[0]}, but the model's tokens are 0 to {count - 1}"
        )
    return tuple(token_ids)


def _before_stop(text: str, stop: Sequence[str]) -> str:
    """Return a text up to the first stop string in it."""
    places = [text.find(string) for string in stop]
    return text[: min((place for place in places if place >= 0), default=len(text))]
