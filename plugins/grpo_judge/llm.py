"""A language model behind an OpenAI-compatible endpoint as judge, through the official client, which retries with growing, jittered pauses.

What cannot be had is an error, never a 0. Keys come from the environment and are written nowhere.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import os
import secrets
import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import openai
from aiolimiter import AsyncLimiter

from grpo_core import ConfigError, Judgement, JudgeRequest
from grpo_judge.kept import Kept
from grpo_judge.prompts import RUBRIC, SCHEMA, UnreadableError, grade, messages
from grpo_judge.unsayable import unsayable

NO_KEY = "none"
"""For endpoints that want none; the client insists on one."""


@dataclass(frozen=True, slots=True)
class LLMConfig:
    """model: as the endpoint calls it; base_url: the endpoint, "" that of OpenAI. key: the environment variable that holds the key.
    rubric: for requests that bring none. votes: answers to each text, whose median counts. temperature: of the answers; above 0 with
    several votes. retries: of calls that fail and of answers that cannot be read. timeout_seconds: of a call. at_once: calls in flight;
    per_minute: most calls in a minute, retries among them, at even distances; 0: no limit. max_chars: longer texts are refused as errors.
    max_tokens: of an answer. cache: a file where judgements are kept; "": none. price_in, price_out: of a million tokens, for the cost in
    the judgement's detail. schema: ask for JSON by its schema, which some endpoints do not know."""

    model: str = ""
    base_url: str = ""
    key: str = "OPENAI_API_KEY"
    rubric: str = RUBRIC
    votes: int = 1
    temperature: float = 0.0
    retries: int = 4
    timeout_seconds: float = 60.0
    at_once: int = 64
    per_minute: float = 0.0
    max_chars: int = 100_000
    max_tokens: int = 200
    cache: str = ""
    price_in: float = 0.0
    price_out: float = 0.0
    schema: bool = True


@dataclass(slots=True)
class Spent:
    """Over the judge's whole life. calls: that were answered; tokens_in, tokens_out; cost: in the unit of the prices."""

    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    cost: float = 0.0


@dataclass(frozen=True, slots=True)
class _Line:
    """To the endpoint. client, slots: both belong for ever to the event loop in which they were first used."""

    loop: asyncio.AbstractEventLoop
    client: Any
    slots: asyncio.Semaphore


class LLM:
    """A `grpo_core.Judge`. spent: what it has cost."""

    Config = LLMConfig

    def __init__(self, config: LLMConfig) -> None:
        self.config = config
        self.spent = Spent()
        self._secret = secrets.token_hex(16)
        self._line: _Line | None = None
        if not config.model:
            raise ConfigError("the judge 'llm' needs a model; set judges.NAME.settings.model (and base_url for an endpoint of your own)")
        if config.votes < 1 or config.retries < 0 or config.at_once < 1 or not 0 <= config.per_minute < math.inf:
            raise ConfigError("the judge 'llm' needs votes and at_once of at least 1, and finite retries and per_minute of at least 0")
        if not config.base_url and not os.environ.get(config.key):
            raise ConfigError(f"the judge 'llm' finds no key in the environment variable {config.key}; set it, or name a base_url")
        self._kept = Kept(Path(config.cache).expanduser()) if config.cache else None

    async def judge(self, requests: Sequence[JudgeRequest]) -> Sequence[Judgement]:
        """One judgement for each; a text that could not be judged has an error."""
        return await asyncio.gather(*map(self._judged, requests))

    def fingerprint(self) -> str:
        names = ("model", "base_url", "rubric", "votes", "temperature", "max_chars", "max_tokens", "schema")
        settings = {name: value for name, value in asdict(self.config).items() if name in names}
        return hashlib.sha256(json.dumps([settings, SCHEMA, messages(JudgeRequest(""), rubric="", secret="")]).encode()).hexdigest()[:16]

    async def close(self) -> None:
        if self._line is not None and self._line.loop is asyncio.get_running_loop():  # the connections of another loop ended with it
            await self._line.client.close()
        if self._kept is not None:
            self._kept.close()

    async def _judged(self, request: JudgeRequest) -> Judgement:
        if (why := unsayable(request)) is not None:
            return why
        if len(request.candidate) > self.config.max_chars:
            return Judgement(0.0, error=f"the text has {len(request.candidate)} characters, more than the judge's max_chars")
        name = hashlib.sha256(json.dumps([self.fingerprint(), asdict(request)], sort_keys=True).encode()).hexdigest()
        if self._kept is not None and (known := self._kept.get(name)) is not None:
            return Judgement(**known)
        votes = await asyncio.gather(*(self._vote(request, vote) for vote in range(self.config.votes)))
        good = [vote for vote in votes if vote.error is None]
        if 2 * len(good) <= len(votes):  # a minority decides nothing
            return next(vote for vote in votes if vote.error is not None)
        middle = statistics.median(vote.score for vote in good)
        nearest = min(good, key=lambda vote: abs(vote.score - middle))
        found = Judgement(middle, nearest.explanation, detail={"votes": [vote.score for vote in good], **_added(good)})
        if self._kept is not None:
            self._kept.put(name, asdict(found))
        return found

    async def _vote(self, request: JudgeRequest, vote: int) -> Judgement:
        last = ""
        for attempt in range(self.config.retries + 1):
            try:
                answer = await self._asked(request, seed=vote + 1000 * attempt)
            except (openai.OpenAIError, ValueError) as error:  # after the client's own retries; a body that is no JSON
                return Judgement(0.0, error=f"the judge's endpoint failed: {type(error).__name__}: {error}"[:500])
            cost = self._count(answer)
            try:
                if not answer.choices:
                    raise UnreadableError("the answer is empty")
                score, reason = grade(answer.choices[0].message.content)
            except UnreadableError as error:
                last = str(error)
                continue
            return Judgement(score, reason, detail=cost)
        return Judgement(0.0, error=f"the judge's answer could not be read in {self.config.retries + 1} attempts: {last}")

    async def _asked(self, request: JudgeRequest, *, seed: int) -> Any:
        config = self.config
        line = self._here()
        more: dict[str, Any] = {}
        if config.schema:
            more["response_format"] = {"type": "json_schema", "json_schema": {"name": "grade", "schema": SCHEMA, "strict": True}}
        async with line.slots:
            return await line.client.chat.completions.create(
                model=config.model,
                messages=messages(request, rubric=config.rubric, secret=self._secret),
                temperature=config.temperature,
                max_tokens=config.max_tokens,
                seed=seed,
                **more,
            )

    def _here(self) -> _Line:
        """In whichever event loop is running."""
        config, loop = self.config, asyncio.get_running_loop()
        if self._line is None or self._line.loop is not loop:
            client = openai.AsyncOpenAI(
                api_key=os.environ.get(config.key) or NO_KEY,
                base_url=config.base_url or None,
                timeout=config.timeout_seconds,
                max_retries=config.retries,
                http_client=openai.DefaultAsyncHttpxClient(event_hooks={"request": _paced(config.per_minute)}),
            )
            self._line = _Line(loop, client, asyncio.Semaphore(config.at_once))
        return self._line

    def _count(self, answer: Any) -> dict[str, float]:
        usage = answer.usage
        tokens_in, tokens_out = (usage.prompt_tokens, usage.completion_tokens) if usage is not None else (0, 0)
        cost = (tokens_in * self.config.price_in + tokens_out * self.config.price_out) / 1e6
        self.spent.calls += 1
        self.spent.tokens_in += tokens_in
        self.spent.tokens_out += tokens_out
        self.spent.cost += cost
        return {"tokens_in": tokens_in, "tokens_out": tokens_out, "cost": cost}


def _paced(per_minute: float) -> list[Callable[[Any], Awaitable[None]]]:
    """What every request waits for, also those that the client repeats by itself."""
    if not per_minute:
        return []
    rate = AsyncLimiter(1, 60 / per_minute)  # one of `per_minute` in 60 s would let twice as many go in the first minute

    async def wait(_: Any) -> None:
        await rate.acquire()

    return [wait]


def _added(votes: Sequence[Judgement]) -> dict[str, float]:
    return {name: sum(vote.detail[name] for vote in votes) for name in ("tokens_in", "tokens_out", "cost")}
