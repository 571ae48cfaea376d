"""Ask a model behind an OpenAI-compatible endpoint for turns: retries, rate limits, a cache.

A server that is busy or broken is asked again, with growing pauses; what fails every time is an
error of the attempt, and so is what no waiting makes possible, such as one request that is larger
than the account's rate limit. A request that the server refuses for its key, model or settings ends
the evaluation. A dialogue that the server refuses for its length or its content is an answer of the
model, which is judged like any other: leaving it out would raise the scores of models that refuse
what is hard.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import random
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from grpo_core import ConfigError, JsonStore
from grpo_core.api.calls import LONGEST_PAUSE_SECONDS, StopRequest
from grpo_core.api.protocol import Tags
from grpo_core.calls.api_client import ApiClient, CallError, FailureKind
from grpo_core.calls.api_requests import (
    has_no_credit,
    is_too_large,
    limit_field,
    wants_other_limit_field,
    with_limit,
    with_limit_field,
)
from grpo_core.protocol.sampler import SamplingParams
from grpo_evals.chat import ChatTurn, Dialogue, read_body, read_turn
from grpo_evals.requests import request_body
from grpo_evals.types import EndpointUsage, ModelSettings, Refusal

_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 30.0
_TICK_SECONDS = 0.1
"""How often a pause looks for a requested stop."""
_LEAST_TOKENS = 16
"""A turn gets at least so many tokens; a dialogue that has less room does not fit."""
_NEUTRAL = "Reply with the word yes."
"""The prompt of a request that tells whether a text or the settings are refused."""
_FILTERED = re.compile(r"content[ _-]?(filter|policy|management)", re.IGNORECASE)
_HINTS = {
    401: "check the key in the environment variable that --key-env names",
    403: "check the key in the environment variable that --key-env names",
    404: "check --model-name, and whether --endpoint ends with /v1",
    429: "add credit to the account",
}
"""What to do about a status."""
_SETTINGS_HINT = (
    "it refuses a short text, too, so that a setting is the cause: lower --max-new-tokens, or "
    "leave out a field by --request FIELD=null"
)
_OTHER_HINT = "leave out a field that it does not know by --request FIELD=null"
_logger = logging.getLogger(__name__)


class StoppedError(Exception):
    """A stop was requested while a request waited to be repeated."""


class _RefusedError(Exception):
    """The server refuses a text, and not the settings of the request."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal)
        self.refusal = refusal


class RemotePolicy:
    """Ask a model behind an endpoint for turns. It belongs to one event loop.

    Args:
        client: calls the endpoint.
        settings: which model is asked, and how.
        retries: how often a request is repeated that the server does not answer.
        stop: ends the pauses before requests are repeated.
        cache: file of the answers of earlier requests; None for none.
    """

    def __init__(
        self,
        client: ApiClient,
        settings: ModelSettings,
        *,
        retries: int,
        stop: StopRequest,
        cache: Path | None = None,
    ) -> None:
        self._client, self._settings = client, settings
        self._retries, self._stop = retries, stop
        self._cache: JsonStore | None = None
        if cache is not None:
            self._cache = JsonStore(cache, item="completion", alternative="name another --cache")
        self._is_proven = False
        """Whether the server has answered a request with these settings."""
        self._proving = asyncio.Lock()
        self._limit_field: str | None = None
        """The field in which the server wants the bound of new tokens, once it has refused one."""

    async def close(self) -> None:
        """Close the connections and the cache."""
        await self._client.close()
        if self._cache is not None:
            self._cache.close()

    @property
    def params(self) -> SamplingParams:
        """Return how tokens are drawn."""
        return self._settings.params

    @property
    def thought_tags(self) -> Tags | None:
        """Return the texts that open and close the model's thoughts; None: it has none."""
        return self._settings.thought_tags

    async def turn(
        self,
        dialogue: Dialogue,
        *,
        limit: int,
        seed: int,
        sample: int,
        tools: Sequence[Any],
        more: Mapping[str, Any] = MappingProxyType({}),
    ) -> ChatTurn:
        """Return the next turn of a dialogue.

        Args:
            dialogue: the messages so far.
            limit: most tokens of the turn; it is halved until the turn fits the model's context.
            seed: the seed of the request.
            sample: number of the attempt at its task; equal requests of others have own answers.
            tools: the descriptions of the tools that the policy may call.
            more: further fields of the request, which take the place of others.

        Raises:
            CallError: the server gave no answer, however often it was asked.
            ConfigError: it refuses the key, the model or a setting.
            StoppedError: a stop was requested meanwhile.
        """
        turn = await self._drawn(
            {
                **request_body(self._settings, dialogue, limit=limit, seed=seed, tools=tools),
                **more,
            },
            is_chat=dialogue.is_chat,
            sample=sample,
            has_tools=bool(tools),
        )
        return turn.split(self.thought_tags, opened=dialogue.opens_thought(self.thought_tags))

    async def _drawn(
        self, body: dict[str, Any], *, is_chat: bool, sample: int, has_tools: bool
    ) -> ChatTurn:
        """Return the turn in the answer to a request, which may be cached; it raises as `turn`."""
        name = self._cache_name(body, sample)
        if self._cache is not None:
            cached = self._cache.get(name, lambda value: read_turn(value, has_tools=has_tools))
            if cached is not None:
                return replace(cached, usage=EndpointUsage(cached=1))
        try:
            value, retries = await self._answer(body, is_chat)
        except _RefusedError as error:
            return ChatTurn("", "length", refused=error.refusal)
        if self._cache is not None:
            self._cache.put(name, value)
        turn = read_turn(value, has_tools=has_tools)
        return replace(turn, usage=turn.usage + EndpointUsage(retries=retries))

    async def _answer(self, body: dict[str, Any], is_chat: bool) -> tuple[Any, int]:
        """Return what `_asked` returns, with fewer tokens if the context has no room for all.

        Raises:
            _RefusedError: the server refuses the text; and as `_asked`.
        """
        while True:
            try:
                return await self._asked(body, is_chat)
            except CallError as error:
                if error.kind is not FailureKind.REFUSED:
                    raise
                refusal: Refusal = "filter" if _FILTERED.search(str(error)) else "context"
            field = limit_field(body)
            half = body[field] // 2 if field else 0
            if refusal == "filter" or half < _LEAST_TOKENS:
                await self._prove(body, is_chat)
                raise _RefusedError(refusal)
            body = with_limit(body, half)

    async def _prove(self, body: Mapping[str, Any], is_chat: bool) -> None:
        """Make sure that a refused request was refused for its text and not for its settings.

        Raises:
            ConfigError: the server refuses a neutral text, too.
        """
        async with self._proving:
            if self._is_proven:
                return
            neutral = {"messages": [{"role": "user", "content": _NEUTRAL}]}
            prompt = neutral if is_chat else {"prompt": _NEUTRAL}
            try:
                await self._asked({**body, **prompt}, is_chat)
            except CallError as error:
                if error.kind is FailureKind.REFUSED:
                    raise self._rejection(error, hint=_SETTINGS_HINT) from None
                raise

    async def _asked(self, body: Mapping[str, Any], is_chat: bool) -> tuple[Any, int]:
        """Return the JSON value of an answer, and how many requests were repeated.

        Raises:
            CallError: there is no answer, or the text is refused.
            ConfigError: the server refuses the key, the model or a setting.
            StoppedError: a stop was requested meanwhile.
        """
        failures = 0
        while True:
            try:
                async with self._client.turn():
                    if self._limit_field is not None:
                        body = with_limit_field(body, self._limit_field)
                    value = await self._answered_once(body, is_chat)
                self._is_proven = True
                return value, failures
            except CallError as error:
                if self._moves_limit(error, body):
                    continue
                if error.kind is FailureKind.REJECTED or has_no_credit(error):
                    raise self._rejection(error) from None
                if is_too_large(error):
                    message = (
                        "one request exceeds the account's rate limit (lower --max-new-tokens, or "
                        f"raise the limit): {error}"
                    )
                    raise CallError(message, FailureKind.UNAVAILABLE) from None
                if error.kind is FailureKind.REFUSED:
                    raise
                failures += 1
                if failures > self._retries:
                    tries = f" ({failures} tries)" if failures > 1 else ""
                    raise CallError(f"the endpoint failed{tries}: {error}", error.kind) from None
                await self._pause(self._pause_seconds(error, failures))

    async def _answered_once(self, body: Mapping[str, Any], is_chat: bool) -> Any:
        """Return the JSON value of the answer to one request; raise CallError if there is none."""
        named = {name: body[name] for name in ("model", "messages", "prompt") if name in body}
        more = {name: value for name, value in body.items() if name not in named}
        value = read_body(await self._client.ask(chat=is_chat, **named, extra_body=more))
        read_turn(value, has_tools=False)
        return value

    def _moves_limit(self, error: CallError, body: Mapping[str, Any]) -> bool:
        """Return whether the server wants the bound of new tokens in a field that was not tried."""
        field = wants_other_limit_field(error, body)
        if field is None or self._limit_field not in (None, field):
            return False
        if self._limit_field is None:
            self._limit_field = field
            _logger.warning(
                "%s refuses the field %s; the most new tokens are sent as %s instead",
                self._settings.endpoint,
                limit_field(body),
                field,
            )
        return True

    def _pause_seconds(self, error: CallError, failures: int) -> float:
        """Return the pause before a request is repeated.

        The client keeps the pause that the server asks for, for all requests.

        Args:
            error: why it failed.
            failures: how often it has failed.
        """
        seconds = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2.0 ** min(failures - 1, 16))
        # So that requests which failed together come apart.
        seconds *= random.SystemRandom().uniform(0.5, 1.0)
        if error.retry_after is not None:
            seconds += min(error.retry_after, LONGEST_PAUSE_SECONDS)
        return seconds

    async def _pause(self, seconds: float) -> None:
        """Wait; raise StoppedError at a requested stop."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if self._stop.is_made:
                raise StoppedError
            await asyncio.sleep(min(left, _TICK_SECONDS))

    def _rejection(self, error: CallError, *, hint: str = "") -> ConfigError:
        hint = hint or _HINTS.get(error.status or 0, _OTHER_HINT)
        return ConfigError(
            f"the endpoint {self._settings.endpoint} refuses the request: {error}; {hint}"
        )

    def _cache_name(self, body: Mapping[str, Any], sample: int) -> str:
        """Return the name under which the answer to a request is cached."""
        contents = json.dumps([self._settings.endpoint, sample, body], sort_keys=True)
        return hashlib.sha256(contents.encode()).hexdigest()
