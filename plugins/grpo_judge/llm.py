"""A language model behind an OpenAI-compatible endpoint as judge.

What fails because of the endpoint is an error, never a low score; what fails because of the text
that is graded is the lowest score, never an error. `grpo_judge.outage` tells which it is. Keys
come from the environment and are written nowhere.
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

from grpo_core import Judgement, JudgeRequest, current_call
from grpo_judge.endpoint import check_connections
from grpo_judge.grader import COSTS, Grader, Spent
from grpo_judge.kept import Kept
from grpo_judge.llm_config import LLMConfig, api_key, check
from grpo_judge.prompts import SCHEMA, messages
from grpo_judge.unsayable import unsayable

_SCORED_BY = (
    "model",
    "base_url",
    "rubric",
    "votes",
    "temperature",
    "max_chars",
    "max_tokens",
    "schema",
)
"""The settings that decide a score."""


class LLM:
    """A `grpo_core.Judge`.

    Attributes:
        spent: what it has cost.

    Raises:
        ConfigError: a setting cannot be used, or the key is missing.
    """

    Config = LLMConfig

    def __init__(self, config: LLMConfig) -> None:
        check(config)
        check_connections()
        self.config = config
        self.spent = Spent()
        self._key = api_key(config)
        self._secret = secrets.token_hex(16)
        self._grader: Grader | None = None
        self._kept = Kept(Path(config.cache).expanduser()) if config.cache else None

    async def judge(self, requests: Sequence[JudgeRequest]) -> Sequence[Judgement]:
        """Return one judgement for each request.

        The clock of the verdict's deadline stands still meanwhile: how long an endpoint takes,
        and what a text can make it take, is bounded by this judge's own settings.
        """
        with current_call().stopped():
            return await asyncio.gather(*map(self._judged, requests))

    def fingerprint(self) -> str:
        """Return a digest of what decides a score."""
        settings = {name: getattr(self.config, name) for name in _SCORED_BY}
        shown = messages(JudgeRequest(""), rubric="", secret="")
        return hashlib.sha256(json.dumps([settings, SCHEMA, shown]).encode()).hexdigest()[:16]

    async def close(self) -> None:
        """Close the connections, unless they ended with the event loop they belong to."""
        grader, self._grader = self._grader, None
        if grader is not None and grader.loop is asyncio.get_running_loop():
            await grader.close()
        if self._kept is not None:
            self._kept.close()

    async def _judged(self, request: JudgeRequest) -> Judgement:
        if (decided := unsayable(request)) is not None:
            return decided
        if (length := len(request.candidate)) > (most := self.config.max_chars):
            return Judgement(0.0, f"it has {length} characters; the judge's max_chars is {most}")
        contents = json.dumps([self.fingerprint(), asdict(request)], sort_keys=True)
        name = hashlib.sha256(contents.encode()).hexdigest()
        if self._kept is not None and (known := self._kept.get(name)) is not None:
            return known
        grader = self._here()
        calls = (grader.vote(request, number=number) for number in range(self.config.votes))
        votes = await asyncio.gather(*calls)
        judgement = _median(votes)
        suspected = any("blamed" in vote.detail for vote in votes)  # no evidence to keep for ever
        if suspected:
            current_call().keep_out_of_caches()
        elif self._kept is not None and judgement.error is None:
            self._kept.put(name, judgement)
        return judgement

    def _here(self) -> Grader:
        """Return the grader of whichever event loop is running."""
        if self._grader is None or self._grader.loop is not asyncio.get_running_loop():
            self._grader = Grader(self.config, key=self._key, secret=self._secret, spent=self.spent)
        return self._grader


def _median(votes: Sequence[Judgement]) -> Judgement:
    """Return the median of the votes that are no errors, or an error if those are no majority.

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
