"""The sessions of a sandbox: how many are open at once, and the jails that wait for later ones."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from grpo_core import ConfigError, Limits, SandboxError, current_call
from grpo_sandbox.blame import BlameGate
from grpo_sandbox.bridge import Bridge
from grpo_sandbox.jail import Jail, JailLostError
from grpo_sandbox.reach import forbidden_packages, require_hidden
from grpo_sandbox.replay import ReplayedJail
from grpo_sandbox.session import JailSession, total_seconds

REQUESTS_PER_JAIL = 5000
"""After this number of requests, a jail serves no further session."""
SESSIONS = 64
"""Default of how many sessions are open at once."""
Start = Callable[[str | None, tuple[str, ...], Bridge | None], Jail]
"""Makes the jail of a session from an image, the names of packages that must not be visible, and
its way to a socket, if it has one.

It raises JailLostError, or ConfigError if there is no such image."""


class SessionPool:
    """Opens sessions, and keeps the jails of those that have ended for later ones.

    Args:
        start: Makes a jail.
        size: Number of sessions at once.
        name: Name of the sandbox in messages.
        gate: Decides who is to blame when a jail is lost.
    """

    def __init__(self, start: Start, *, size: int, name: str, gate: BlameGate) -> None:
        if size < 1:
            raise ConfigError(f"sandbox.settings.sessions is {size}; at least 1 is needed")
        self._start, self._size, self._name, self._gate = start, size, name, gate
        self._lock = threading.Lock()
        self._waiting: deque[Future[None]] = deque()
        self._free = size
        self._open: set[JailSession] = set()
        self._warm: list[tuple[str | None, Jail]] = []
        self._checked: set[str | None] = set()
        self._checking = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None

    async def open(
        self,
        files: Mapping[str, str | bytes],
        image: str | None,
        limits: Limits,
        socket: str | Path | None,
    ) -> JailSession:
        """Open a session; see `grpo_core.Sandbox.session`.

        One with a socket has a jail of its own, since its way there is made with it.
        """
        with current_call().stopped():
            await self._place()
            try:
                bridge = None if socket is None else Bridge(socket)
            except BaseException:
                self._leave()
                raise
            jail = ReplayedJail(
                lambda: self._take(image, bridge),
                self._gate,
                total_seconds(limits),
                repeatable=bridge is None,
            )
            with self._lock:
                executor = self._executor = self._executor or ThreadPoolExecutor(
                    self._size, "grpo session"
                )
                session = JailSession(
                    jail,
                    limits,
                    executor,
                    lambda ended: self._release(ended, jail, image, bridge),
                )
                self._open.add(session)
            try:
                await session.open(files)
            except BaseException:
                await session.close()
                raise
            return session

    async def close(self) -> None:
        """End all sessions and their jails, also those that wait; later ones start again."""
        with self._lock:
            sessions, executor, self._executor = list(self._open), self._executor, None
            waiting, self._waiting = self._waiting, deque()
        for place in waiting:
            if place.set_running_or_notify_cancel():
                place.set_exception(SandboxError(f"{self._name} was closed"))
        await asyncio.gather(*(asyncio.to_thread(session.end) for session in sessions))
        with self._lock:
            warm, self._warm = self._warm, []
        for _, jail in warm:
            await asyncio.to_thread(jail.close)
        if executor is not None:
            await asyncio.to_thread(executor.shutdown)

    @property
    def is_used(self) -> bool:
        """Return whether any session is open."""
        with self._lock:
            return bool(self._open)

    async def _place(self) -> None:
        """Wait until fewer sessions are open than may be."""
        place: Future[None] = Future()
        with self._lock:
            if self._free > 0:
                self._free -= 1
                return
            self._waiting.append(place)
        try:
            await asyncio.wrap_future(place)
        except asyncio.CancelledError:
            if not place.cancel() and not place.cancelled():
                self._leave()
            raise

    def _leave(self) -> None:
        """Give a place to the session that has waited longest."""
        with self._lock:
            while self._waiting:
                place = self._waiting.popleft()
                if place.set_running_or_notify_cancel():
                    place.set_result(None)
                    return
            self._free += 1

    def _release(
        self, session: JailSession, jail: ReplayedJail, image: str | None, bridge: Bridge | None
    ) -> None:
        clean = jail.give_up()
        if bridge is not None:
            bridge.close()
        with self._lock:
            self._open.discard(session)
            reusable = bridge is None and self._executor is not None
            if clean is not None and reusable and clean.jobs < REQUESTS_PER_JAIL:
                self._warm.append((image, clean))
                clean = None
        self._leave()
        if clean is not None:
            clean.close()

    def _take(self, image: str | None, bridge: Bridge | None) -> Jail:
        """Return a jail whose session has begun: a warm one if there is any, else a new one."""
        while bridge is None and (jail := self._warm_jail(image)) is not None:
            if jail.is_alive:
                return _begun(jail)
            jail.close()
        with self._lock:
            too_many = len(self._open) + len(self._warm) > self._size
            other = self._warm.pop(0)[1] if too_many and self._warm else None
        if other is not None:
            other.close()
        return _begun(self._new_jail(image, bridge))

    def _warm_jail(self, image: str | None) -> Jail | None:
        with self._lock:
            for index, (kind, jail) in enumerate(self._warm):
                if kind == image:
                    del self._warm[index]
                    return jail
        return None

    def _new_jail(self, image: str | None, bridge: Bridge | None) -> Jail:
        """Make a jail; the first one of an image shows whether it holds a forbidden package."""
        if image not in self._checked:
            with self._checking:
                if image not in self._checked:
                    jail = self._start(image, forbidden_packages(), bridge)
                    require_hidden(jail, self._name)
                    self._checked.add(image)
                    return jail
        return self._start(image, (), bridge)


def _begun(jail: Jail) -> Jail:
    if not jail.request("begin")["clean"]:
        jail.close()
        raise JailLostError(f"the jail {jail.name} cannot prepare the folder of a session")
    return jail
