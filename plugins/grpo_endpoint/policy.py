"""Serve a policy to programs that speak the OpenAI API, outside of training."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from grpo_core import ConfigError, Message
from grpo_core.api.training import (
    Actor,
    generate,
    is_chat,
    make_choice,
    may_think,
    prompt_tokens,
    random_key,
    sampler_request,
    sampling_params,
    token_budget,
)
from grpo_core.protocol.endpoint import (
    Access,
    CompletionAnswer,
    CompletionRequest,
    Endpoint,
    RefusedRequestError,
)
from grpo_core.protocol.sampler import Completion, Request, SamplingParams

_TOKENS_WITHOUT_CONTEXT = 1024
"""The budget of a request that names none, where the model's context is not known."""
_MOST_TOKENS = 2**22
"""Most tokens that the completions of a request may have together."""
_LONG, _PART = 20_000, 50
"""A prompt of more characters is tokenised in a thread; a message counts for some of its own."""
_SHARE = 200_000
"""So many random numbers are drawn without a pause."""
_POLL_SECONDS = 0.1


class PolicyCompleter:
    """Answer requests with completions of a policy.

    What a request leaves open is as in `sampling.` of the config. Draws are fixed by the seed of a
    request, and random without one.

    Args:
        actor: has the policy and its sampler, which has the weights already.
        before: messages that are put before each chat, as the system prompt and the examples of an
            environment; a chat that has a system prompt of its own, or that begins with these
            messages, is left as it is.

    Raises:
        ConfigError: the policy cannot continue texts.
    """

    def __init__(self, actor: Actor, before: Sequence[Message] = ()) -> None:
        if actor.policy.fills:
            raise ConfigError(
                "a masked language model fills gaps and continues no texts, so it cannot be "
                "served; take a causal language model"
            )
        self._policy, self._sampler = actor.policy, actor.sampler
        self._params = actor.config.sampling.params()
        self._default_tokens = (
            actor.config.sampling.max_new_tokens or actor.policy.context or _TOKENS_WITHOUT_CONTEXT
        )
        self._before = tuple(before)

    async def complete(self, request: CompletionRequest) -> CompletionAnswer:
        """Return the completions of a request; see `Completer.complete`."""
        request = _behind(self._before, request)
        if _is_long(request):  # others are answered meanwhile
            prompt_ids = await asyncio.to_thread(prompt_tokens, self._policy, request)
        else:
            prompt_ids = prompt_tokens(self._policy, request)
        count = token_budget(self._policy, request, prompt_ids, default=self._default_tokens)
        params = sampling_params(request, self._params)
        completions = await self._sample(await _draws(request, prompt_ids, params, count))
        choices = [
            make_choice(
                self._policy,
                prompt_ids,
                completion,
                stop=params.stop,
                tools=request.tools,
                may_think=may_think(request),
            )
            for completion in completions
        ]
        return CompletionAnswer(tuple(choices), len(prompt_ids))

    async def _sample(self, requests: list[Request]) -> list[Completion]:
        """Return the completion of each request; the first failure gives up the others."""
        tasks = [asyncio.create_task(generate(self._sampler, request)) for request in requests]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()


def _behind(before: tuple[Message, ...], request: CompletionRequest) -> CompletionRequest:
    """Return a request whose chat follows the given messages, if it has none of their kind."""
    chat = request.prompt
    if not before or not is_chat(chat):
        return request
    if chat[0].role == "system" or chat[: len(before)] == before:
        return request
    return replace(request, prompt=(*before, *chat))


def _is_long(request: CompletionRequest) -> bool:
    """Return whether it takes a while to turn a request into tokens."""
    prompt = request.prompt
    characters = len(prompt) if isinstance(prompt, str) else 0
    if is_chat(prompt):
        characters = sum(len(message.content) for message in prompt) + len(prompt) * _PART
    return characters + len(request.tools) * _PART > _LONG


async def _draws(
    request: CompletionRequest, prompt_ids: tuple[int, ...], params: SamplingParams, count: int
) -> list[Request]:
    """Return what the sampler is asked, for each completion of a request.

    Raises:
        RefusedRequestError: the completions may have too many tokens together.
    """
    if request.count * count > _MOST_TOKENS:
        raise RefusedRequestError(
            f"{request.count} completions of up to {count} tokens are more than {_MOST_TOKENS} "
            "tokens together; lower n or max_tokens, or send several requests"
        )
    draws: list[Request] = []
    for number in range(request.count):
        key = random_key(request.seed, number)
        draws.append(
            sampler_request(
                prompt_ids, params, key=key, count=count, json_schema=request.json_schema
            )
        )
        if len(draws) * count // _SHARE != (len(draws) - 1) * count // _SHARE:
            await asyncio.sleep(0)  # others are answered meanwhile
    return draws


async def serve(
    actor: Actor,
    endpoint: Endpoint,
    *,
    before: Sequence[Message],
    key: str,
    on_open: Callable[[Access], None],
) -> None:
    """Serve the policy of an actor until the actor is asked to stop.

    Args:
        actor: the actor.
        endpoint: the server; it is opened and closed here.
        before: messages that are put before each chat.
        key: the key that clients have to send; "" for none.
        on_open: is told how clients reach the server, once they can.

    Raises:
        UserError: the policy cannot be served, or the server cannot listen.
    """
    completer = PolicyCompleter(actor, before)
    async with actor.sampling():
        await actor.sync()
        await endpoint.open()
        try:
            on_open(endpoint.admit(completer, key=key))
            while not actor.stop.is_made:  # noqa: ASYNC110 - signals set no event of a loop
                await asyncio.sleep(_POLL_SECONDS)
        finally:
            await endpoint.close()
