"""Finds out whether an endpoint is available, once for all calls of a judge.

After a failed call the endpoint is asked to grade a neutral text (a probe). If it cannot do that
either, it is unavailable: all calls wait together until it answers again, up to a limit. Only one
probe runs at a time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from grpo_core import JudgeRequest
from grpo_core.calls.api_client import CallError, FailureKind

NEUTRAL = JudgeRequest("The sun rises in the east.", context="Write a true sentence.")
"""The request of a probe. No part of it comes from a policy or an environment."""
PROBES = 2
"""Number of probes in a row that must pass before an endpoint counts as available: if calls fail at
random, a single probe would also pass at random."""
FIRST_PAUSE_SECONDS = 0.1
SHORT_SECONDS = 0.5
"""An outage that is shorter needs no warning."""
MOST_WARNINGS = 5
"""After this number of outages, further ones are not reported."""
LONGEST_PAUSE_SECONDS = 8.0
_logger = logging.getLogger(__name__)


class EndpointAwayError(Exception):
    """The endpoint gives no grades for a reason other than the text; the message says why."""


class Outage:
    """The state of one endpoint, available or not, which all calls to it share.

    Args:
        probe: Asks for a grade of the neutral text, and raises CallError if there is none, or
            EndpointAwayError if there will be none.
        name: Name of the endpoint in messages.
        patience_seconds: How long calls wait for an endpoint that is unavailable. An outage that
            lasts longer makes calls fail at once until the endpoint has answered again.
        retries: How often a probe is repeated whose answers cannot be read, if the endpoint has
            never graded a text: it is then more likely set up wrongly than unavailable, so calls do
            not wait for as long. Later, such answers may come from a proxy in front of it.
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
        self._warnings = 0
        self._given_up = False
        self._has_answered = False
        self._closed = False
        self.waiting = False
        """Whether calls wait for the endpoint: only probes should be sent."""

    async def wait_until_available(self) -> None:
        """Wait until calls do not have to wait for the endpoint any more.

        Raises:
            EndpointAwayError: It did not come back in time.
        """
        while self.waiting and self._check is not None:
            await self._result(self._check)

    async def answers_at_once(self) -> bool:
        """Return whether probes that began after a failure pass at once.

        If not, the endpoint was unavailable and has come back when this returns.

        Raises:
            EndpointAwayError: The endpoint is unavailable for good, or the judge was closed.
        """
        begun_before = self._checks
        while True:
            if self._closed:
                raise EndpointAwayError("the judge was closed")
            if self._check is None or self._check.done():
                self._checks += 1
                self._check = asyncio.create_task(self._run_check())
            number = self._checks
            passed = await self._result(self._check)
            if not passed or number > begun_before:
                return passed

    def answered(self) -> None:
        """Record that the endpoint has graded a text, so that calls wait for it at an outage."""
        self._given_up = False
        self._has_answered = True

    def close(self) -> None:
        """Stop waiting."""
        self._closed = True
        if self._check is not None:
            self._check.cancel()

    async def _result(self, check: asyncio.Task[tuple[bool, str | None]]) -> bool:
        """Return the result of a check, which continues if this caller is cancelled."""
        try:
            passed, error = await asyncio.shield(check)
        except EndpointAwayError:
            self._given_up = True
            raise
        except asyncio.CancelledError:
            if check.cancelled():
                raise EndpointAwayError("the judge was closed") from None
            raise
        if error is not None:
            raise EndpointAwayError(error)
        return passed

    async def _run_check(self) -> tuple[bool, str | None]:
        """Probe the endpoint, and wait for it if it is unavailable.

        Returns:
            Whether it answers at once, and the reason if it is unavailable for good.
        """
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
            return await self._wait(failure)
        finally:
            self.waiting = False

    async def _wait(self, failure: CallError) -> tuple[bool, str | None]:
        """Probe with growing pauses until the endpoint answers or `patience_seconds` are over."""
        began, probes, warned = time.monotonic(), 0, False
        while True:
            left = self._patience_seconds - (time.monotonic() - began)
            if left <= 0 or self._is_hopeless(failure, probes):
                self._given_up = True
                return False, f"{failure} (waited {time.monotonic() - began:.0f} s)"
            pause = min(left, max(pause_seconds(probes), failure.retry_after or 0.0))
            is_short = time.monotonic() - began + pause <= SHORT_SECONDS
            if not (warned or is_short) and self._warnings < MOST_WARNINGS:
                warned, self._warnings = True, self._warnings + 1
                _logger.warning(
                    "the judge %s is unavailable (%s): verdicts wait for it, up to %g s%s",
                    self._name,
                    failure,
                    self._patience_seconds,
                    "; further outages are not reported" * (self._warnings == MOST_WARNINGS),
                )
            await asyncio.sleep(pause)
            probes += 1
            next_failure = await self._failure()
            if next_failure is None:
                if warned:
                    waited = time.monotonic() - began
                    _logger.warning(
                        "the judge %s is available again after %.1f s", self._name, waited
                    )
                return False, None
            failure = next_failure

    def _is_hopeless(self, failure: CallError, probes: int) -> bool:
        """Return whether waiting would not help, given a failure after `probes` probes."""
        if self._has_answered:
            return False
        unreadable = failure.kind in (FailureKind.UNREADABLE, FailureKind.REFUSED)
        return failure.kind is FailureKind.REJECTED or (unreadable and probes >= self._retries)

    async def _failure(self) -> CallError | None:
        """Run a probe and return its failure, or None if it passes."""
        try:
            await self._probe()
        except CallError as error:
            return error
        return None


def pause_seconds(number: int) -> float:
    """Return the pause in seconds after failure `number`, counted from 0."""
    return min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(number, 16))
