"""Tells the failures of an endpoint from those that a candidate caused, by one rule.

After a failed call the endpoint is asked to grade a neutral text (a probe). If it cannot do that
either, it is unavailable: all calls wait together until it answers again, up to a
limit. If it can, the failure counts against the candidate. Only one probe is under way at a time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from grpo_core import JudgeRequest
from grpo_judge.endpoint import CallError, Kind

NEUTRAL = JudgeRequest("The sun rises in the east.", context="Write a true sentence.")
"""What a probe asks about. Nothing of it comes from a policy or an environment."""
PROBES = 2
"""Probes in a row that must pass before a failure counts against a candidate: where calls fail by
chance, one would pass by chance as well."""
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 8.0
_logger = logging.getLogger(__name__)


class EndpointAwayError(Exception):
    """The endpoint does not answer, whatever it is asked; the message says why."""


class Outage:
    """What the calls to one endpoint know together about whether it answers.

    Args:
        probe: asks for a grade of the neutral text; it raises CallError if there is none.
        name: of the endpoint, for messages.
        patience_seconds: how long calls wait for an endpoint that is unavailable. An outage that lasts
            longer makes calls fail at once until the endpoint has answered again.
        retries: how often a probe is repeated whose answers cannot be read, where the endpoint
            has never graded a text: it is set up wrong more likely than away, so that it is not
            waited for as long. Later such answers may be those of a proxy in front of it.
    """

    def __init__(
        self,
        probe: Callable[[], Awaitable[object]],
        *,
        name: str,
        patience_seconds: float,
        retries: int,
    ) -> None:
        self._probe = probe
        self._name = name
        self._patience_seconds = patience_seconds
        self._retries = retries
        self._check: asyncio.Task[tuple[bool, str | None]] | None = None
        self._checks = 0
        self._given_up = False
        self._has_answered = False
        self._closed = False
        self.waiting = False
        """Whether the endpoint is being waited for: no call but a probe should be made."""

    async def wait_until_available(self) -> None:
        """Return when the endpoint is not waited for any more.

        Raises:
            EndpointAwayError: it did not come back in time.
        """
        while self.waiting and self._check is not None:
            await self._result(self._check)

    async def is_candidates_fault(self) -> bool:
        """Return whether a failure of just now counts against the candidate.

        It does if probes that began after it pass at once. It does not if the endpoint was away
        and has come back.

        Raises:
            EndpointAwayError: the endpoint is unavailable for good, or the judge was closed.
        """
        begun_before = self._checks
        while True:
            if self._closed:
                raise EndpointAwayError("the judge was closed")
            if self._check is None or self._check.done():
                self._checks += 1
                self._check = asyncio.create_task(self._checked())
            number = self._checks
            passed = await self._result(self._check)
            if not passed or number > begun_before:
                return passed

    def answered(self) -> None:
        """Note that the endpoint has graded a text: the next outage may be waited for again."""
        self._given_up = False
        self._has_answered = True

    def close(self) -> None:
        """Stop waiting."""
        self._closed = True
        if self._check is not None:
            self._check.cancel()

    async def _result(self, check: asyncio.Task[tuple[bool, str | None]]) -> bool:
        """Return what a check finds, which goes on if this caller is cancelled."""
        try:
            passed, error = await asyncio.shield(check)
        except asyncio.CancelledError:
            if check.cancelled():
                raise EndpointAwayError("the judge was closed") from None
            raise
        if error is not None:
            raise EndpointAwayError(error)
        return passed

    async def _checked(self) -> tuple[bool, str | None]:
        """Return whether the endpoint answers at once, and the reason if it is unavailable for good."""
        for _ in range(PROBES):
            failure = await self._failure()
            if failure is not None:
                break
        if failure is None:
            self._given_up = False
            return True, None
        if self._given_up or self._is_hopeless(failure, 0) or self._patience_seconds <= 0:
            return False, str(failure)
        self.waiting = True
        try:
            return await self._waited(failure)
        finally:
            self.waiting = False

    async def _waited(self, failure: CallError) -> tuple[bool, str | None]:
        """Probe with growing pauses until the endpoint answers or patience is at its end."""
        began, probes, warned = time.monotonic(), 0, False
        while True:
            left = self._patience_seconds - (time.monotonic() - began)
            if left <= 0 or self._is_hopeless(failure, probes):
                self._given_up = True
                return False, f"{failure} (waited {time.monotonic() - began:.0f} s)"
            pause = min(left, max(pause_seconds(probes), failure.retry_after or 0.0))
            if not warned and (probes or pause > FIRST_PAUSE_SECONDS):  # a blip is no news
                warned = True
                _logger.warning(
                    "the judge %s is unavailable (%s): verdicts wait for it, up to %g s",
                    self._name,
                    failure,
                    self._patience_seconds,
                )
            await asyncio.sleep(pause)
            probes += 1
            following = await self._failure()
            if following is None:
                if warned:
                    waited = time.monotonic() - began
                    _logger.warning(
                        "the judge %s is available again after %.1f s", self._name, waited
                    )
                return False, None
            failure = following

    def _is_hopeless(self, failure: CallError, probes: int) -> bool:
        """Return whether waiting would not help, to judge by a failure after so many probes."""
        if self._has_answered:
            return False
        unreadable = failure.kind in (Kind.UNREADABLE, Kind.REFUSED)
        return failure.kind is Kind.REJECTED or (unreadable and probes >= self._retries)

    async def _failure(self) -> CallError | None:
        """Return how a probe fails; None if it passes."""
        try:
            await self._probe()
        except CallError as error:
            return error
        return None


def pause_seconds(number: int) -> float:
    """Return the pause after the failure of this number, the first of which is 0."""
    return min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(number, 16))
