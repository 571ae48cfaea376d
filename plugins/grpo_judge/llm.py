"""A judge that is a language model behind an OpenAI-compatible endpoint.

A failure of the endpoint is an error, never a low score; a failure that the text alone causes is
the lowest score. `grpo_judge.grader` decides which it is. Keys come from
the environment and are written nowhere.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from grpo_core import JsonStore, Judgement, JudgeRequest, current_call
from grpo_core.calls.api_client import check_connections
from grpo_judge.grader import Grader
from grpo_judge.llm_config import SUBJECT, LLMConfig, api_key, check, request_fields
from grpo_judge.prompts import SCHEMA, messages
from grpo_judge.replies import note_replies
from grpo_judge.spent import COSTS, Spent
from grpo_judge.unsayable import unsayable

_SCORED_BY = (
    "model",
    "base_url",
    "rubric",
    "votes",
    "temperature",
    "max_chars",
    "max_tokens",
    "most_tokens",
    "request",
    "schema",
)
"""Settings that a score depends on."""


class LLM:
    """A `grpo_core.Judge` that asks an endpoint for grades.

    Attributes:
        spent: The cost of its calls so far.

    Raises:
        ConfigError: A setting cannot be used, or the key is missing.
    """

    Config = LLMConfig

    def __init__(self, config: LLMConfig) -> None:
        check(config)
        check_connections(SUBJECT)
        self.config = config
        self.spent = Spent()
        self._key = api_key(config)
        self._secret = secrets.token_hex(16)
        self._grader: Grader | None = None
        self._cache: JsonStore | None = None
        if config.cache:
            self._cache = JsonStore(
                Path(config.cache).expanduser(), item="judgement", alternative="name another one"
            )

    async def judge(self, requests: Sequence[JudgeRequest]) -> Sequence[Judgement]:
        """Return one judgement for each request.

        The clock of the verdict's deadline is stopped meanwhile: the time that an endpoint takes,
        and that a text can make it take, is limited by this judge's own settings.
        """
        with current_call().stopped():
            judgements = await asyncio.gather(*map(self._judge_one, requests))
        note_replies(self.config.model, requests, judgements)
        return judgements

    def fingerprint(self) -> str:
        """Return a digest of everything that a score depends on."""
        settings = {name: getattr(self.config, name) for name in _SCORED_BY}
        settings["request"] = request_fields(self.config)
        prompt = messages(JudgeRequest(""), rubric="", secret="")
        return hashlib.sha256(json.dumps([settings, SCHEMA, prompt]).encode()).hexdigest()[:16]

    async def close(self) -> None:
        """Close the connections, unless they ended with their event loop."""
        grader, self._grader = self._grader, None
        if grader is not None and grader.loop is asyncio.get_running_loop():
            await grader.close()
        if self._cache is not None:
            self._cache.close()

    async def _judge_one(self, request: JudgeRequest) -> Judgement:
        if (decided := unsayable(request)) is not None:
            return decided
        if (length := len(request.candidate)) > (most := self.config.max_chars):
            return Judgement(0.0, f"it has {length} characters; the judge's max_chars is {most}")
        contents = json.dumps([self.fingerprint(), asdict(request)], sort_keys=True)
        name = hashlib.sha256(contents.encode()).hexdigest()
        if self._cache is not None and (cached := self._cache.get(name, _parse_judgement)):
            return cached
        grader = self._grader_of_loop()
        calls = (grader.vote(request, number=number) for number in range(self.config.votes))
        votes = await asyncio.gather(*calls)
        judgement = _median(votes)
        # A text that was blamed for failed calls may be judged differently another time.
        suspected = any("blamed" in vote.detail for vote in votes)
        if suspected:
            current_call().keep_out_of_caches()
        elif self._cache is not None and judgement.error is None:
            self._cache.put(name, asdict(judgement))
        return judgement

    def _grader_of_loop(self) -> Grader:
        """Return the grader of the running event loop."""
        if self._grader is None or self._grader.loop is not asyncio.get_running_loop():
            self._grader = Grader(self.config, key=self._key, secret=self._secret, spent=self.spent)
        return self._grader


def _parse_judgement(value: Any) -> Judgement:
    """Return a stored judgement from its JSON value; raise an exception for any other value."""
    judgement = Judgement(**value)
    score, explanation, detail = judgement.score, judgement.explanation, judgement.detail
    shaped = type(score) in (int, float) and isinstance(explanation, str) and type(detail) is dict
    if not shaped or not 0 <= score <= 1 or judgement.error is not None:
        raise ValueError("it is not a judgement with a score from 0 to 1")
    return judgement


def _median(votes: Sequence[Judgement]) -> Judgement:
    """Return the median of the votes without errors, or an error if they are not the majority.

    The lowest score of a text that made its calls fail is a vote like any other.
    """
    scored = [vote for vote in votes if vote.error is None]
    if 2 * len(scored) <= len(votes):
        return next(vote for vote in votes if vote.error is not None)
    middle = statistics.median(vote.score for vote in scored)
    nearest = min(scored, key=lambda vote: abs(vote.score - middle))
    cost = {name: sum(vote.detail[name] for vote in scored) for name in COSTS}
    detail = {"votes": [vote.score for vote in scored], **cost}
    return Judgement(middle, nearest.explanation, detail=detail)
