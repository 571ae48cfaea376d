"""Serve a policy to programs that speak the OpenAI API, outside of training."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from grpo_core.protocol.endpoint import (
    Access,
    CompletionAnswer,
    CompletionRequest,
    Endpoint,
)
from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.sampler import Completion, Request
from grpo_core.train.actor import Actor
from grpo_core.train.rollout.completions import (
    generate,
    make_choice,
    may_think,
    prompt_tokens,
    random_key,
    sampler_request,
    sampling_params,
    token_budget,
)

DEFAULT_TOKENS = 1024
"""The budget of a request that names none, where the config names none either."""
_POLL_SECONDS = 0.1


class PolicyCompleter:
    """Answer requests with completions of a policy.

    What a request leaves open is as in `sampling.` of the config. Draws are fixed by the seed of a
    request, and random without one.

    Args:
        actor: has the policy and its sampler, which has the weights already.

    Raises:
        ConfigError: the policy cannot continue texts.
    """

    def __init__(self, actor: Actor) -> None:
        if actor.policy.fills:
            raise ConfigError(
                "a masked language model fills gaps and continues no texts, so it cannot be "
                "served; take a causal language model"
            )
        self._policy, self._sampler = actor.policy, actor.sampler
        self._params = actor.config.sampling.params()
        self._default_tokens = actor.config.sampling.max_new_tokens or DEFAULT_TOKENS

    async def complete(self, request: CompletionRequest) -> CompletionAnswer:
        """Return the completions of a request; see `Completer.complete`."""
        prompt_ids = prompt_tokens(self._policy, request)
        count = token_budget(self._policy, request, prompt_ids, default=self._default_tokens)
        params = sampling_params(request, self._params)
        completions = await self._sample(
            [
                sampler_request(
                    prompt_ids,
                    params,
                    key=random_key(request.seed, number),
                    count=count,
                    json_schema=request.json_schema,
                )
                for number in range(request.count)
            ]
        )
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


async def serve(
    actor: Actor, endpoint: Endpoint, *, key: str, on_open: Callable[[Access], None]
) -> None:
    """Serve the policy of an actor until the actor is asked to stop.

    Args:
        actor: the actor.
        endpoint: the server; it is opened and closed here.
        key: the key that clients have to send; "" for none.
        on_open: is told how clients reach the server, once they can.

    Raises:
        UserError: the policy cannot be served, or the server cannot listen.
    """
    completer = PolicyCompleter(actor)
    async with actor.sampling():
        await actor.sync()
        await endpoint.open()
        try:
            on_open(endpoint.admit(completer, key=key))
            while not actor.stop.is_made:  # noqa: ASYNC110 - signals set no event of a loop
                await asyncio.sleep(_POLL_SECONDS)
        finally:
            await endpoint.close()
