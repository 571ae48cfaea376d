"""Lets calls for texts run together, or the calls for one of them alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


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
