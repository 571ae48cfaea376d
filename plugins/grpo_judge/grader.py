"""Gets grades of texts from an endpoint, and finds out who is to blame where there is none.

A text gets the lowest score in two cases only: the endpoint refuses its content or length while it
grades a neutral text in the same context, or its calls fail where those of its own words in another
order never do (`grpo_judge.trial`). Everything else is an error.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

from grpo_core import Judgement, JudgeRequest
from grpo_core.calls.api_client import ApiClient, CallError, FailureKind, TimedOutError
from grpo_judge.asking import Asker
from grpo_judge.llm_config import LLMConfig
from grpo_judge.outage import NEUTRAL, EndpointAwayError, Outage, pause_seconds
from grpo_judge.prompts import messages
from grpo_judge.spent import Spent
from grpo_judge.trial import Graded, Outcome, Refused, Unclear, compare
from grpo_judge.turns import Turns

MOST_OUTAGES = 5
"""After this number of calls for one text at which the endpoint became unavailable and came back,
the text is compared with its controls: a text that crashes the endpoint could otherwise choose an
error."""
ROUNDS = 3
"""How often all this is done before a text that nothing tells apart is an error: at an endpoint
where calls fail at random, most texts are graded in a later round."""
_RANDOM = random.SystemRandom()
"""Not the global generator, which verifiers of the run may use."""
ROUND_SEEDS = 1_000_000
"""Distance of the seeds of two rounds."""
_logger = logging.getLogger(__name__)


class _CompanyError(Exception):
    """The endpoint gave no answer while other texts were graded, which may be the cause."""


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
        self._votes = Counter[JudgeRequest]()
        self._blamed: dict[JudgeRequest, Judgement] = {}
        self._endpoint = ApiClient(
            key=key,
            base_url=config.base_url or None,
            timeout_seconds=config.timeout_seconds,
            at_once=config.at_once,
            per_minute=config.per_minute,
            check=lambda: self._asker.check_limited(),
            longest_pause_seconds=config.patience_seconds,
        )
        self._redact = self._endpoint.redact
        self._name = self._redact(f"{config.model} at {config.base_url or 'OpenAI'}")
        self._outage = Outage(
            self._probe,
            name=self._name,
            patience_seconds=config.patience_seconds,
            retries=config.retries,
        )
        self._asker = Asker(
            config, endpoint=self._endpoint, outage=self._outage, name=self._name, spent=spent
        )

    async def vote(self, request: JudgeRequest, *, number: int) -> Judgement:
        """Return one grade, the lowest score for a text that makes calls fail, or an error.

        Args:
            request: The text to grade.
            number: Index of the vote among those for this text; its seeds depend on it.
        """
        self._votes[request] += 1
        try:
            return await self._vote(request, number=number, spent=Spent())
        except EndpointAwayError as error:
            return self._error(str(error))
        finally:
            self._votes[request] -= 1
            if not self._votes[request]:
                del self._votes[request]
                self._blamed.pop(request, None)

    async def close(self) -> None:
        """Stop waiting and close the connections."""
        self._outage.close()
        await self._endpoint.close()

    async def _vote(self, request: JudgeRequest, *, number: int, spent: Spent) -> Judgement:
        """Return the judgement of the first round that has a grade or a cause."""
        for round_number in range(ROUNDS):
            seed = number + ROUND_SEEDS * round_number
            judgement = await self._one_round(request, seed=seed, spent=spent)
            if judgement.error is None:
                break
        return judgement

    async def _one_round(self, request: JudgeRequest, *, seed: int, spent: Spent) -> Judgement:
        """Return the judgement after up to 1 + `retries` failures and a comparison."""
        prompt, failures, outages = self._messages(request), 0, 0
        for attempt in itertools.count():
            try:
                async with self._turns.together():
                    score, reason = await self._asker.grade(
                        prompt, seed=seed + 1000 * attempt, spent=spent
                    )
                return Judgement(score, reason, detail=spent.detail())
            except CallError as error:
                failure = error
            if failure.kind is FailureKind.REFUSED:
                return await self._refused(request, failure, spent)
            counts = await self._is_available(failure)
            failures, outages = failures + counts, outages + (not counts)
            if failures <= self._config.retries and outages < MOST_OUTAGES:
                if counts:
                    await asyncio.sleep(self._pause(failure, failures))
                continue
            if failure.kind is FailureKind.REJECTED:
                raise EndpointAwayError(f"{failure}; a neutral text is graded")
            return await self._tried(request, failure, spent)
        raise AssertionError("counting ends only by a return")

    async def _is_available(self, failure: CallError) -> bool:
        """Return whether the endpoint grades neutral texts at once after a failure.

        Raises:
            EndpointAwayError: It is unavailable for good.
        """
        try:
            return await self._outage.answers_at_once()
        except EndpointAwayError as error:
            raise EndpointAwayError(f"{failure}; asked about a neutral text: {error}") from None

    async def _refused(self, request: JudgeRequest, failure: CallError, spent: Spent) -> Judgement:
        """Return the lowest score if a neutral text in the same context is graded."""
        control = self._messages(replace(request, candidate=NEUTRAL.candidate))
        for attempt in range(self._config.retries + 2):
            try:
                async with self._turns.together():
                    await self._asker.grade(control, seed=attempt, spent=spent)
            except CallError as error:
                if error.kind is FailureKind.REFUSED:
                    raise EndpointAwayError(
                        f"{failure}; a neutral text in the same context is refused, too: {error}"
                    ) from None
                await self._is_available(error)
            else:
                return await self._refused_again(request, failure, spent)
        return self._error(f"{failure}; a neutral text in the same context could not be graded")

    async def _refused_again(
        self, request: JudgeRequest, failure: CallError, spent: Spent
    ) -> Judgement:
        """Return the lowest score if the text is refused once more, and its grade if it is not."""
        try:
            async with self._turns.together():
                score, reason = await self._asker.grade(
                    self._messages(request), seed=ROUND_SEEDS - 1, spent=spent
                )
        except CallError as error:
            if error.kind is FailureKind.REFUSED:
                return self._lowest(failure, "a neutral text in its place was graded", spent)
            return self._error(f"{failure}; and asked once more: {error}")
        return Judgement(score, reason, detail=spent.detail())

    async def _tried(self, request: JudgeRequest, failure: CallError, spent: Spent) -> Judgement:
        """Return the judgement after a comparison of the text with its controls.

        Unless the endpoint gives no answers, other texts are graded meanwhile.
        """
        for is_alone in (_may_disturb(failure), True):
            try:
                outcome = await self._compare(request, spent=spent, is_alone=is_alone)
            except _CompanyError:
                continue
            if isinstance(outcome, Judgement):
                return outcome
            if isinstance(outcome, Graded):
                return Judgement(outcome.score, outcome.reason, detail=spent.detail())
            if isinstance(outcome, Refused):
                return await self._refused(request, outcome.error, spent)
            if isinstance(outcome, Unclear):
                return self._error(f"{failure}; it cannot be told why: {outcome.why}")
            why = "its own words in another order were graded"
            judgement = self._blamed[request] = self._lowest(outcome.last, why, spent)
            return judgement
        raise AssertionError("a comparison that runs alone ends with an outcome")

    async def _compare(
        self, request: JudgeRequest, *, spent: Spent, is_alone: bool
    ) -> Outcome | Judgement:
        """Return the outcome of a comparison, or what another vote has found meanwhile.

        Raises:
            _CompanyError: It has to be repeated alone.
            EndpointAwayError: The endpoint is unavailable for good.
        """

        async def ask(text: str, seed: int) -> tuple[float, str]:
            prompt = self._messages(replace(request, candidate=text))
            async with AsyncExitStack() as stack:
                if not is_alone:
                    await stack.enter_async_context(self._turns.together())
                try:
                    return await self._asker.grade(prompt, seed=seed, spent=spent, is_patient=False)
                except CallError as error:
                    if _may_disturb(error) and not is_alone:
                        raise _CompanyError from None
                    raise

        async with AsyncExitStack() as stack:
            if is_alone:
                await stack.enter_async_context(self._turns.alone())
            if (known := self._blamed.get(request)) is not None:
                return known
            await self._outage.answers_at_once()  # returns once the endpoint is available
            signs = self._asker.signs
            return await compare(
                request.candidate,
                ask=ask,
                has_signs=lambda: self._asker.signs > signs,
                recover=self._outage.answers_at_once,
            )

    async def _probe(self) -> None:
        """Ask for a grade of the neutral text."""
        await self._asker.grade(
            self._messages(NEUTRAL), seed=next(self._probes), spent=Spent(), is_probe=True
        )

    def _messages(self, request: JudgeRequest) -> Sequence[dict[str, str]]:
        return messages(request, rubric=self._config.rubric, secret=self._secret)

    def _pause(self, failure: CallError, failures: int) -> float:
        """Return the pause in seconds before the call for a text is repeated."""
        if failure.kind is FailureKind.UNAVAILABLE:
            return pause_seconds(failures - 1) * _RANDOM.uniform(0.75, 1.0)
        return 0.0

    def _lowest(self, failure: CallError, control: str, spent: Spent) -> Judgement:
        """Return the judgement of a text that makes calls fail."""
        why = f"this text has no grade, while {control}: {failure}"
        if not self._spent.blamed:
            _logger.warning("the judge %s gives a text 0, as it will others: %s", self._name, why)
        self._spent.blamed += 1
        return Judgement(0.0, why, detail={**spent.detail(), "blamed": True})

    def _error(self, why: str) -> Judgement:
        """Return the judgement of a text that could not be graded because of the endpoint."""
        error = self._redact(f"the judge's endpoint failed: {why}", max_chars=1000)
        return Judgement(0.0, error=error)


def _may_disturb(failure: CallError) -> bool:
    """Return whether what caused a failure may make the calls of other texts fail, as a crash."""
    return failure.kind is FailureKind.UNAVAILABLE and not isinstance(failure, TimedOutError)
