"""Answer requests with completions of a policy, outside of training."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import fields, replace

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
    score_tokens,
    token_budget,
)
from grpo_core.engine.models import pieces
from grpo_core.protocol.endpoint import (
    CompletionAnswer,
    CompletionRequest,
    RefusedRequestError,
)
from grpo_core.protocol.sampler import (
    Completion,
    Request,
    SamplingParams,
    takes_extras,
)
from grpo_endpoint.choices import behind_echo, check_bias, check_sampler, with_calls
from grpo_endpoint.requests import Delta, ServedChoice, ServedRequest, as_served
from grpo_endpoint.unfolding import Unfolding, likely, token_text

_TOKENS_WITHOUT_CONTEXT = 1024
"""The budget of a request that names none, where the model's context is not known."""
_MOST_LOGITS = 2**29
"""Most numbers in the logits of a prompt, 2 GB."""
_MOST_TOKENS = 2**22
"""Most tokens that the completions of a request may have together."""
_LONG, _PART = 20_000, 50
"""A prompt of more characters is tokenised in a thread; a message counts for some of its own."""
_SHARE = 200_000
"""So many random numbers are drawn without a pause."""


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

    serves_more = True

    def __init__(self, actor: Actor, before: Sequence[Message] = ()) -> None:
        if actor.policy.fills:
            raise ConfigError(
                "a masked language model fills gaps and continues no texts, so it cannot be "
                "served; take a causal language model"
            )
        self._policy, self._sampler = actor.policy, actor.sampler
        self._params = actor.config.sampling.params()
        self.context = actor.policy.context
        self._vocabulary = actor.policy.model.config.get_text_config(decoder=True).vocab_size
        self._default_tokens = (
            actor.config.sampling.max_new_tokens or self.context or _TOKENS_WITHOUT_CONTEXT
        )
        self._before = tuple(before)

    async def complete(self, request: CompletionRequest) -> CompletionAnswer:
        """Return the completions of a request; see `Completer.complete`."""
        asked = request if isinstance(request, ServedRequest) else as_served(request)
        check_sampler(self._sampler, asked)
        check_bias(asked, self._vocabulary)
        asked = _behind(self._before, asked)
        if _is_long(asked):  # others are answered meanwhile
            prompt_ids = await asyncio.to_thread(
                prompt_tokens, self._policy, asked, asked.template_args
            )
        else:
            prompt_ids = prompt_tokens(self._policy, asked, asked.template_args)
        count = 0
        if asked.max_tokens != 0:
            count = token_budget(self._policy, asked, prompt_ids, default=self._default_tokens)
        params = _params(asked, self._params)
        echo = await self._echo(asked, prompt_ids, params) if asked.echoes else None
        draws = await _draws(asked, prompt_ids, params, count)
        tasks = [
            asyncio.create_task(self._choice(number, asked, draw, echo))
            for number, draw in enumerate(draws)
        ]
        try:
            choices = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        return CompletionAnswer(tuple(choices), len(prompt_ids))

    async def _choice(
        self, number: int, asked: ServedRequest, draw: Request, echo: Delta | None
    ) -> ServedChoice:
        """Return one completion, and tell it while it is drawn.

        Args:
            number: its number within the request.
            asked: the request.
            draw: what the sampler is asked.
            echo: the prompt, if the completion begins with it.
        """
        policy, params = self._policy, draw.params
        thinks = may_think(asked)
        unfolding = None
        if asked.tell is not None:
            if echo is not None:
                asked.tell(replace(echo, choice=number))
            unfolding = Unfolding(
                number,
                policy,
                draw.prefix,
                stop=params.stop,
                may_think=thinks,
                has_tools=bool(asked.tools),
                is_held=asked.called is not None,
                tell=asked.tell,
            )
        if takes_extras(self._sampler):
            on_token = unfolding.add if unfolding is not None else None
            draw = replace(draw, extras=replace(asked.extras, on_token=on_token))
        completion = await self._completion(asked, draw)
        made = make_choice(
            policy,
            draw.prefix,
            completion,
            stop=params.stop,
            tools=() if asked.called is not None else asked.tools,
            may_think=thinks,
        )
        alternatives = tuple(likely(policy, each) for each in completion.alternatives)
        own = {each.name: getattr(made, each.name) for each in fields(made)}
        choice = ServedChoice(**own, alternatives=alternatives)
        if asked.called is not None:
            choice = with_calls(choice, asked.called)
        if unfolding is not None:
            unfolding.finish(choice)
        return choice if echo is None else behind_echo(echo, choice)

    async def _completion(self, asked: ServedRequest, draw: Request) -> Completion:
        """Return what the sampler draws.

        Raises:
            RefusedRequestError: the sampler cannot follow the JSON schema of the request.
        """
        try:
            return await generate(self._sampler, draw)
        except RefusedRequestError as error:
            if asked.called is None:
                raise
            raise RefusedRequestError(
                str(error).replace("response_format", "tool_choice")
            ) from None

    async def _echo(
        self, asked: ServedRequest, prompt_ids: tuple[int, ...], params: SamplingParams
    ) -> Delta:
        """Return the prompt of a request, with its log-probs if they are asked for.

        Raises:
            RefusedRequestError: there are too many of them.
        """
        policy, prompt = self._policy, asked.prompt
        text = prompt if isinstance(prompt, str) else pieces.decode(policy.tokenizer, prompt_ids)
        if not asked.scores_prompt:
            return Delta(0, content=text)
        width = self._vocabulary
        if len(prompt_ids) * width > _MOST_LOGITS:
            raise RefusedRequestError(
                f"echo: log-probs of {len(prompt_ids)} tokens of a prompt need too much memory; "
                f"send at most {_MOST_LOGITS // width} tokens, or leave logprobs out"
            )
        logprobs, best = await score_tokens(
            policy,
            prompt_ids,
            temperature=params.temperature,
            alternatives=asked.extras.alternatives,
        )
        return Delta(
            0,
            content=text,
            tokens=tuple(token_text(policy, token) for token in prompt_ids),
            logprobs=(None, *logprobs),
            alternatives=((), *(likely(policy, each) for each in best)),
        )


def _params(asked: ServedRequest, defaults: SamplingParams) -> SamplingParams:
    """Return how the completions of a request are drawn."""
    params = sampling_params(asked, defaults)
    return replace(
        params,
        top_k=params.top_k if asked.top_k is None else asked.top_k,
        min_p=params.min_p if asked.min_p is None else asked.min_p,
    )


def _behind(before: tuple[Message, ...], request: ServedRequest) -> ServedRequest:
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
