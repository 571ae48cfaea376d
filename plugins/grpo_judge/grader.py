"""Gets grades of texts from an endpoint.

The rule of `grpo_judge.outage` decides the cause of each failed call: a failure of the endpoint is
an error; a failure that the text caused is the lowest score.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from grpo_core import Judgement, JudgeRequest
from grpo_core.calls.api_client import ApiClient, CallError, Kind
from grpo_judge.answers import Answer, read_answer
from grpo_judge.llm_config import LLMConfig
from grpo_judge.outage import NEUTRAL, EndpointAwayError, Outage, pause_seconds
from grpo_judge.prompts import SCHEMA, UnreadableError, grade, messages

COSTS = ("tokens_in", "tokens_out", "cost")
MAX_FAULT_CHARS = 200
MOST_OUTAGES = 5
"""After this number of calls for one text at which the endpoint became unavailable and came back,
the text is to blame: a text that crashes the endpoint could otherwise choose an error."""
MAX_REASON_CHARS = 2000
_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Spent:
    """The cost of calls, for one judgement or over the judge's whole life."""

    calls: int = 0
    """Number of answered calls."""
    tokens_in: int = 0
    """Tokens of the prompts."""
    tokens_out: int = 0
    """Tokens of the answers."""
    cost: float = 0.0
    """Cost in the unit of the prices."""
    blamed: int = 0
    """Number of grades of 0 for texts that made calls fail."""

    def add(self, answer: Answer, config: LLMConfig) -> None:
        """Add the cost of one answer."""
        price = answer.tokens_in * config.price_in + answer.tokens_out * config.price_out
        self.calls += 1
        self.tokens_in += answer.tokens_in
        self.tokens_out += answer.tokens_out
        self.cost += price / 1e6

    def detail(self) -> dict[str, Any]:
        """Return the cost in the form of a judgement's detail."""
        return {name: getattr(self, name) for name in COSTS}


class Turns:
    """Lets calls for texts run together, or one of them alone."""

    def __init__(self) -> None:
        self._gate = asyncio.Lock()
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @asynccontextmanager
    async def together(self) -> AsyncIterator[None]:
        """Wait while a call runs alone, then run beside others."""
        async with self._gate:
            self._running += 1
            self._idle.clear()
        try:
            yield
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Wait until no other call runs, and keep others waiting meanwhile."""
        async with self._gate:
            await self._idle.wait()
            yield


class Grader:
    """Asks an endpoint for grades. It belongs to the event loop in which it was made.

    Args:
        config: The settings of the judge.
        key: The API key.
        secret: Makes the marks around a text impossible to guess.
        spent: Counts the cost of all calls.
    """

    def __init__(self, config: LLMConfig, *, key: str, secret: str, spent: Spent) -> None:
        self.loop = asyncio.get_running_loop()
        self._config = config
        self._secret = secret
        self._spent = spent
        self._probes = itertools.count()
        self._turns = Turns()
        self._texts = Counter[str]()
        self._endpoint = ApiClient(
            key=key,
            base_url=config.base_url or None,
            timeout_seconds=config.timeout_seconds,
            at_once=config.at_once,
            per_minute=config.per_minute,
        )
        self._redact = self._endpoint.redact
        self._name = self._redact(f"{config.model} at {config.base_url or 'OpenAI'}")
        self._outage = Outage(
            self._probe,
            name=self._name,
            patience_seconds=config.patience_seconds,
            retries=config.retries,
        )

    async def vote(self, request: JudgeRequest, *, number: int) -> Judgement:
        """Return one grade, the lowest score for a text that makes calls fail, or an error.

        Args:
            request: The text to grade.
            number: Index of the vote among those for this text; its seeds depend on it.
        """
        prompt = messages(request, rubric=self._config.rubric, secret=self._secret)
        self._texts[request.candidate] += 1
        try:
            return await self._vote(request, prompt, number=number)
        finally:
            self._texts[request.candidate] -= 1
            if not self._texts[request.candidate]:
                del self._texts[request.candidate]

    async def _vote(
        self, request: JudgeRequest, prompt: Sequence[dict[str, str]], *, number: int
    ) -> Judgement:
        spent, failures, outages = Spent(), 0, 0
        had_company = False
        for attempt in itertools.count():
            seed = number + 1000 * attempt
            try:
                async with self._turns.together():
                    score, reason = await self._call(prompt, seed=seed, spent=spent)
                return Judgement(score, reason, detail=spent.detail())
            except EndpointAwayError as error:
                return self._error(str(error))
            except CallError as error:
                failure = error
            had_company = had_company or len(self._texts) > 1
            try:
                counts = await self._outage.is_candidates_fault()
            except EndpointAwayError as error:
                return self._error(f"{failure}; asked about a neutral text: {error}")
            failures, outages = failures + counts, outages + (not counts)
            if failures > self._config.retries or (counts and failure.kind is Kind.REFUSED):
                blame = failures
            elif outages >= MOST_OUTAGES:
                blame = outages
            else:
                if counts:
                    await asyncio.sleep(self._pause(failure, failures))
                continue
            if failure.kind is Kind.UNAVAILABLE and had_company:
                return await self._trial(prompt, seed=seed + 1000, spent=spent, failures=blame)
            return self._lowest(failure, blame, spent)
        raise AssertionError("counting ends only by a return")

    async def _trial(
        self, prompt: Sequence[dict[str, str]], *, seed: int, spent: Spent, failures: int
    ) -> Judgement:
        """Ask for a grade while no other text is being graded, and blame the text if that fails.

        Another text may have crashed the endpoint at each earlier failure. Here the endpoint has
        just graded a neutral text, and nothing else can have crashed it since.
        """
        async with self._turns.alone():
            try:
                await self._outage.is_candidates_fault()  # returns once the endpoint is available
                score, reason = await self._call(prompt, seed=seed, spent=spent)
            except EndpointAwayError as error:
                return self._error(str(error))
            except CallError as failure:
                return self._lowest(failure, failures + 1, spent)
            return Judgement(score, reason, detail=spent.detail())

    async def close(self) -> None:
        """Stop waiting and close the connections."""
        self._outage.close()
        await self._endpoint.close()

    async def _probe(self) -> None:
        """Ask for a grade of the neutral text."""
        prompt = messages(NEUTRAL, rubric=self._config.rubric, secret=self._secret)
        await self._call(prompt, seed=next(self._probes), spent=Spent(), probe=True)

    async def _call(
        self,
        prompt: Sequence[dict[str, str]],
        *,
        seed: int,
        spent: Spent,
        probe: bool = False,
    ) -> tuple[float, str]:
        """Return score and reason of one answer.

        Raises:
            CallError: There is no answer, or none with a grade.
            EndpointAwayError: The endpoint was unavailable, and did not come back in time.
        """
        answer = await self._answer(prompt, seed=seed, probe=probe)
        for account in (spent, self._spent):
            account.add(answer, self._config)
        try:
            score, reason = grade(answer.content)
        except UnreadableError as error:
            if answer.refused:
                why, kind = f"the text was refused: {answer.refused}", Kind.REFUSED
            else:
                why, kind = (
                    f"the answer could not be read: {answer.fault or error}",
                    Kind.UNREADABLE,
                )
            raise CallError(self._redact(why, max_chars=MAX_FAULT_CHARS), kind) from None
        self._outage.answered()
        return score, self._redact(reason, max_chars=MAX_REASON_CHARS)

    async def _answer(self, prompt: Sequence[dict[str, str]], *, seed: int, probe: bool) -> Answer:
        """Return an answer; calls other than probes wait while the endpoint is unavailable."""
        config, request = self._config, dict[str, Any]()
        if config.schema:
            form = {"name": "grade", "schema": SCHEMA, "strict": True}
            request["response_format"] = {"type": "json_schema", "json_schema": form}
        while True:
            if not probe:
                await self._outage.wait_until_available()
            async with self._endpoint.turn(urgent=probe):
                if probe or not self._outage.waiting:
                    body = await self._endpoint.ask(
                        model=config.model,
                        messages=prompt,
                        temperature=config.temperature,
                        max_tokens=config.max_tokens,
                        seed=seed,
                        **request,
                    )
                    return read_answer(body)

    def _pause(self, failure: CallError, failures: int) -> float:
        """Return the pause in seconds before the call for a text is repeated."""
        if failure.retry_after is not None:
            return min(failure.retry_after, self._config.patience_seconds)
        if failure.kind is Kind.UNAVAILABLE:
            return pause_seconds(failures - 1) * random.uniform(0.75, 1.0)
        return 0.0

    def _lowest(self, failure: CallError, failures: int, spent: Spent) -> Judgement:
        """Return the judgement of a text that makes calls fail."""
        times = f"{failures} calls" if failures > 1 else "a call"
        why = f"{times} for this text failed, while a neutral text was graded: {failure}"
        if not self._spent.blamed:
            _logger.warning("the judge %s gives a text 0, as it will others: %s", self._name, why)
        self._spent.blamed += 1
        return Judgement(0.0, why, detail={**spent.detail(), "blamed": True})

    def _error(self, why: str) -> Judgement:
        """Return the judgement of a text that could not be graded because of the endpoint."""
        error = self._redact(f"the judge's endpoint failed: {why}", max_chars=1000)
        return Judgement(0.0, error=error)
