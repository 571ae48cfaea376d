"""Decide when calls of one endpoint may begin, at a rate that the endpoint itself limits.

Congestion control as in TCP: a limit that the endpoint reports lengthens the interval between
calls; answers shorten it again, quickly until the endpoint limits the lower rate as well. The first
interval is the one at which the answers so far would have kept to the limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

DEFAULT_PAUSE_SECONDS = 1.0
"""The pause after a limit for which the endpoint asks for none."""
LONGEST_PAUSE_SECONDS = 300.0
"""The longest pause that an endpoint gets for all calls by asking for it."""
LONGEST_INTERVAL_SECONDS = 60.0
SHORTEST_INTERVAL_SECONDS = 0.002
"""A shorter interval is dropped: calls then begin at once."""
TICK_SECONDS = 0.1
"""How often a waiting call looks for urgent ones and for a requested stop."""
SLOWER, QUICKLY_FASTER, SLOWLY_FASTER = 1.3, 0.8, 0.98
"""Factors of the interval at a limit, and at an answer before and after the second limit."""


class Pace:
    """The time at which the next call may begin. It belongs to one event loop.

    Args:
        per_minute: largest number of calls that begin in a minute, evenly spaced; 0 is no limit.
        check: called while calls wait; what it raises, such as at a requested stop, ends the wait.
        longest_pause_seconds: a longer pause that the endpoint asks for is left to the caller.
    """

    def __init__(
        self,
        per_minute: float,
        *,
        check: Callable[[], None] | None = None,
        longest_pause_seconds: float = LONGEST_PAUSE_SECONDS,
    ) -> None:
        self._check = check
        self._longest_pause = longest_pause_seconds
        self._least = 60 / per_minute if per_minute else 0.0
        self._interval = self._least
        self._next_time = 0.0
        self._lowered_at = 0.0
        self._first_time: float | None = None
        self._answers = 0
        self._limits = 0
        self._gate = asyncio.Lock()
        self._urgent = 0

    @property
    def per_minute(self) -> float:
        """The number of calls that may begin in a minute now; infinity without a limit."""
        return 60 / self._interval if self._interval else float("inf")

    @contextlib.asynccontextmanager
    async def turn(self, slots: asyncio.Semaphore, *, urgent: bool = False) -> AsyncIterator[None]:
        """Wait until a call may begin; inside the block it holds one of the slots.

        Args:
            slots: has one slot for each call that may be in flight.
            urgent: let it begin before all calls that are not urgent, however long they waited.
        """
        self._urgent += urgent
        try:
            has_begun = await self._begin(slots, urgent=urgent)
            while not has_begun:
                await asyncio.sleep(0)  # go to the end of the queue, and let urgent calls begin
                has_begun = await self._begin(slots, urgent=urgent)
        finally:
            self._urgent -= urgent
        try:
            yield
        finally:
            slots.release()

    async def _begin(self, slots: asyncio.Semaphore, *, urgent: bool) -> bool:
        """Take a slot at the right time; return False if an urgent call has to go first."""
        async with self._gate:
            if self._urgent and not urgent:
                return False
            await slots.acquire()
            try:
                while True:
                    if self._urgent and not urgent:
                        slots.release()
                        return False
                    if (left := self._next_time - time.monotonic()) <= 0:
                        break
                    if self._check is not None:
                        self._check()
                    await asyncio.sleep(min(left, TICK_SECONDS))
            except BaseException:
                slots.release()
                raise
            now = time.monotonic()
            self._next_time = now + self._interval
            self._first_time = now if self._first_time is None else self._first_time
            return True

    def limited(self, *, began: float, retry_after: float | None) -> None:
        """Wait as the endpoint asks, and begin later calls more slowly.

        Args:
            began: time.monotonic() when the limited call began. Calls that began before the rate
                was lowered say nothing about the lower rate.
            retry_after: the pause in seconds that the endpoint asks for, if it does.
        """
        now = time.monotonic()
        pause = DEFAULT_PAUSE_SECONDS if retry_after is None else retry_after
        if pause <= self._longest_pause:
            self._next_time = max(self._next_time, now + pause)
        if began < self._lowered_at:
            return
        self._lowered_at = now
        self._limits += 1
        if self._interval > self._least:
            slower = SLOWER * self._interval
        else:
            since = now - (now if self._first_time is None else self._first_time)
            slower = min(pause, (since + pause) / max(1, self._answers))
        least = max(self._least, 10 * SHORTEST_INTERVAL_SECONDS)
        self._interval = min(max(slower, least), max(least, LONGEST_INTERVAL_SECONDS))

    def answered(self) -> None:
        """Begin later calls faster, after an answer."""
        self._answers += 1
        faster = QUICKLY_FASTER if self._limits < 2 else SLOWLY_FASTER
        self._interval = max(self._interval * faster, self._least)
        if self._interval < SHORTEST_INTERVAL_SECONDS:
            self._interval = self._least
