"""Let requests that come at about the same time be sampled in one batch."""

from __future__ import annotations

import asyncio

_QUIET_SECONDS = 0.005
_LONGEST_WAIT = 0.05


class Gathering:
    """Hold requests back for a moment, so that those that come together are sampled together.

    The built-in engine computes in one batch what arrives in one pass of the event loop, and
    requests that clients send at the same time arrive within some milliseconds.

    Args:
        quiet_seconds: requests are held back until none came for this long.
        longest_wait: but no longer than this, in seconds.
    """

    def __init__(
        self, *, quiet_seconds: float = _QUIET_SECONDS, longest_wait: float = _LONGEST_WAIT
    ) -> None:
        self._quiet_seconds, self._longest_wait = quiet_seconds, longest_wait
        self._held: list[asyncio.Future[None]] = []
        self._releasing: asyncio.Task[None] | None = None

    async def join(self) -> None:
        """Wait for the others; all that waited go on in the same pass of the event loop."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._held.append(future)
        if self._releasing is None or self._releasing.done():
            self._releasing = asyncio.create_task(self._release())
        await future

    async def _release(self) -> None:
        loop = asyncio.get_running_loop()
        started, count = loop.time(), 0
        while count < len(self._held) and loop.time() - started < self._longest_wait:
            count = len(self._held)
            await asyncio.sleep(self._quiet_seconds)
        held, self._held = self._held, []
        for future in held:
            if not future.done():
                future.set_result(None)
