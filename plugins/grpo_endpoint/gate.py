"""Who may ask, and how many requests are answered at a time."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from grpo_core.protocol.endpoint import Completer
from grpo_endpoint.errors import ApiError


@dataclass(slots=True, eq=False)
class KeyHolder:
    """Holds what is behind a key."""

    key: str
    completer: Completer
    answered: int = 0
    """Number of its requests that are being answered."""
    work: set[asyncio.Task[object]] = field(default_factory=set)
    """Its requests in progress, also those that wait."""
    is_dismissed: bool = False


class Gate:
    """Lets in as many requests as are answered at a time; the others wait in a queue.

    A request is let in when there is room for it, in all and of its client; the first that can be
    let in comes first.

    Args:
        most: most requests that are answered at a time.
        most_of_a_client: most of one client.
        queue: most requests that wait.
    """

    def __init__(self, *, most: int, most_of_a_client: int, queue: int) -> None:
        self._most, self._most_of_a_client, self._queue = most, most_of_a_client, queue
        self._answered = 0
        self._seconds = 1.0
        self._waiting: deque[tuple[KeyHolder, asyncio.Future[None]]] = deque()

    @property
    def running(self) -> int:
        """Return the number of requests that are being answered."""
        return self._answered

    @property
    def waiting(self) -> int:
        """Return the number of requests that wait for their turn."""
        return len(self._waiting)

    @asynccontextmanager
    async def turn(self, client: KeyHolder) -> AsyncIterator[None]:
        """Wait until a request of the client may be answered, and answer it in the block.

        Raises:
            ApiError: too many wait already.
        """
        await self._enter(client)
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            yield
        finally:
            self._seconds += 0.1 * (loop.time() - started - self._seconds)
            self._leave(client)

    async def _enter(self, client: KeyHolder) -> None:
        if self._has_room(client):
            self._admit(client)
            return
        if len(self._waiting) >= self._queue:
            raise ApiError(
                429,
                f"{self._answered} requests are being answered and {len(self._waiting)} wait; "
                "send this one again later",
                code="rate_limit_exceeded",
                retry_seconds=max(1, math.ceil(self._seconds)),
            )
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((client, future))
        try:
            await future
        except asyncio.CancelledError:
            if future.cancelled():
                self._waiting.remove((client, future))
            else:  # it was let in at the same moment
                self._leave(client)
            raise

    def _has_room(self, client: KeyHolder) -> bool:
        return self._answered < self._most and client.answered < self._most_of_a_client

    def _admit(self, client: KeyHolder) -> None:
        self._answered += 1
        client.answered += 1

    def _leave(self, client: KeyHolder) -> None:
        self._answered -= 1
        client.answered -= 1
        for entry in [*self._waiting]:
            if self._answered >= self._most:
                break
            waiting, future = entry
            if not future.done() and self._has_room(waiting):
                self._waiting.remove(entry)
                self._admit(waiting)
                future.set_result(None)
