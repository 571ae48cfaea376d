"""Actors of one kind: which of them is asked, and what happens if one is lost."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
import zlib
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from grpo_core import ConfigError

_PING_SECONDS = 10.0
"""How long a request may take before the actor is asked whether it lives, and how often then."""
_DEAD_SECONDS = 30.0
"""An actor that does not answer that question for so long counts as dead."""
_AGAIN_SECONDS = 5.0
"""How long to wait after an actor could not be started."""
_CLOSE_SECONDS = 30.0
"""How long an actor may take to close its environment, sandboxes and judges."""
_logger = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _Seat:
    """One of the place's actors; a lost one is replaced."""

    handle: Any = None
    """Ray's handle of the actor."""
    node: str = ""
    """Name of the machine it runs on, with Ray's id of the node."""
    pid: int = 0
    """Its process there."""
    ready: bool = False
    """Whether it takes requests."""
    in_flight: int = 0
    """Requests that it has."""
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)
    """Requests that only this actor may answer, since their session is there."""
    fault: str = ""
    """Why it could not be started."""
    differing: str = ""
    """The versions on its node that are not the run's."""
    tried: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the first start has ended, well or not."""
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it is lost, so that another is started."""


class ActorLostError(Exception):
    """An actor was lost, or none could be started in time; the message says which and why."""


class ActorPool:
    """Ask actors that are alike.

    A request goes to the actor with the fewest requests, and waits here while all have as many as
    they can work on. A lost actor is replaced.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        *,
        what: str,
        concurrency: int,
        start_seconds: float,
        describe: Callable[[], str],
        prepare: Callable[[Any], Awaitable[None]] | None = None,
    ) -> None:
        """Prepare the pool; nothing is started yet.

        Args:
            make: returns the handle of a new actor, whose `open` returns JSON text with `node`,
                `pid`, `differing` and `fault`.
            what: what the actors do, such as "verify 'arithmetic'", for messages.
            concurrency: most requests at once for each.
            start_seconds: how long the start of one may take.
            describe: returns what the cluster has.
            prepare: called with each new actor before it is asked.
        """
        self._make, self._what, self._describe = make, what, describe
        self._concurrency, self._start_seconds = concurrency, start_seconds
        self._prepare = prepare
        self._seats: list[_Seat] = []
        self._keepers: list[asyncio.Task[None]] = []
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def open(self, count: int) -> None:
        """Start so many actors.

        Raises:
            ConfigError: a node has other versions, or no actor can be opened.
        """
        self._seats = [_Seat() for _ in range(count)]
        self._keepers = [asyncio.create_task(self._keep(seat)) for seat in self._seats]
        for seat in self._seats:
            await seat.tried.wait()
        faulty = [seat for seat in self._seats if seat.fault]
        for seat in self._seats:
            if seat.differing:
                raise ConfigError(
                    f"node {seat.node} has {seat.differing}; install the same versions on all nodes"
                )
        if len(faulty) == len(self._seats):
            raise ConfigError(f"no actor can {self._what}: {faulty[0].fault}")
        if faulty:
            _logger.warning(
                "%d of %d actors that %s are not there yet: %s",
                len(faulty), len(self._seats), self._what, faulty[0].fault,
            )  # fmt: skip

    @property
    def actors(self) -> list[tuple[str, int]]:
        """Return node and process id of each actor that takes requests."""
        return [(seat.node, seat.pid) for seat in self._seats if seat.ready]

    @property
    def handles(self) -> list[Any]:
        """Return the handles of the actors that take requests."""
        return [seat.handle for seat in self._seats if seat.ready]

    async def call(self, method: str, *arguments: Any, session: str | None = None) -> str:
        """Return what a method of an actor returns.

        Args:
            method: name of the method.
            arguments: its arguments.
            session: calls of the same session go to the same actor while it lives.

        Raises:
            ActorLostError: the actor was lost, or there is none.
        """
        from ray.exceptions import RayActorError, RayError

        seat = await self._take(session)
        if seat is None:
            faults = dict.fromkeys(seat.fault for seat in self._seats if seat.fault)
            reason = "; ".join(faults) or "all were lost"
            raise ActorLostError(f"no Ray actor could be started in time: {reason}")
        handle = seat.handle
        try:
            return await _answered(handle, method, arguments)
        except (RayActorError, TimeoutError) as error:
            self._lose(seat, handle, _reason(error))
            text = f"the Ray actor on {seat.node} was lost: {_reason(error)}"
            raise ActorLostError(text) from None
        except RayError as error:
            text = f"the Ray actor on {seat.node} failed: {_reason(error)}"
            raise ActorLostError(text) from None
        finally:
            if seat.handle is handle:
                seat.in_flight -= 1
            self._wake(seat)

    async def close(self) -> None:
        """Close what each actor has opened, and end all actors."""
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        handles = [seat.handle for seat in self._seats if seat.ready]
        endings = [asyncio.wrap_future(handle.close.remote().future()) for handle in handles]
        if endings:
            _, late = await asyncio.wait(endings, timeout=_CLOSE_SECONDS)
            for ending in endings:
                if ending in late or ending.exception() is not None:
                    _logger.warning("a Ray actor did not close in time, or failed")
        for seat in self._seats:
            seat.ready = False
            _kill(seat.handle)
        self._seats, self._keepers = [], []

    async def _take(self, session: str | None) -> _Seat | None:
        """Return an actor that can take a request, which counts from now on.

        None if there is none, and for `start_seconds` there has been none.
        """
        patience = time.monotonic() + self._start_seconds
        seats, waiting = self._seats, self._waiting
        if session is not None:
            seats = [seats[zlib.crc32(session.encode()) % len(seats)]]
            waiting = seats[0].waiting
        while True:
            live = [seat for seat in seats if seat.ready]
            seat = min(live, key=lambda seat: seat.in_flight, default=None)
            if seat is not None and seat.in_flight < self._concurrency:
                seat.in_flight += 1
                return seat
            left = None if live else patience - time.monotonic()
            if left is not None and left <= 0:
                return None
            turn = asyncio.get_running_loop().create_future()
            waiting.append(turn)
            try:
                await asyncio.wait({turn}, timeout=left)
            except asyncio.CancelledError:
                for seat in live:  # its turn, if it had come, is another's
                    self._wake(seat)
                raise
            finally:
                if not turn.done() and turn in waiting:
                    waiting.remove(turn)

    def _wake(self, seat: _Seat) -> None:
        """Wake as many waiting requests as the seat has room for; each looks for an actor again."""
        free = self._concurrency - seat.in_flight
        for waiting in (seat.waiting, self._waiting):
            while waiting and free > 0:
                turn = waiting.popleft()
                if not turn.done():
                    turn.set_result(None)
                    free -= 1

    def _lose(self, seat: _Seat, handle: Any, reason: str) -> None:
        """Give an actor up, unless that was done already, so that another is started."""
        if seat.handle is not handle or not seat.ready:
            return
        _logger.warning(
            "a Ray actor on %s, there to %s, was lost, and another is started: %s",
            seat.node, self._what, reason,
        )  # fmt: skip
        _kill(handle)
        seat.ready, seat.handle, seat.in_flight = False, None, 0
        for turn in (*seat.waiting, *self._waiting):  # so that their patience begins
            if not turn.done():
                turn.set_result(None)
        seat.waiting.clear()
        self._waiting.clear()
        seat.lost.set()

    async def _keep(self, seat: _Seat) -> None:
        """Start the actor of a seat, and another one whenever it is lost."""
        while True:
            await self._start(seat)
            seat.tried.set()
            if seat.ready:
                self._wake(seat)
                await seat.lost.wait()
                seat.lost.clear()
            else:
                await asyncio.sleep(_AGAIN_SECONDS)

    async def _start(self, seat: _Seat) -> None:
        """Start an actor; afterwards the seat is ready or has a fault."""
        from ray.exceptions import RayError

        handle = self._make()
        opened = asyncio.wrap_future(handle.open.remote().future())
        try:
            answer = json.loads(await asyncio.wait_for(opened, self._start_seconds))
            seat.node, seat.pid = answer["node"], answer["pid"]
            seat.differing = answer["differing"]
            seat.fault = answer["fault"] or answer["differing"]
            if self._prepare is not None and not seat.fault:
                await asyncio.wait_for(self._prepare(handle), self._start_seconds)
        except TimeoutError:
            seat.fault = (
                f"it did not start within {self._start_seconds:g} s; the cluster has "
                f"{self._describe()}"
            )
        except RayError as error:
            seat.fault = _reason(error)
        except asyncio.CancelledError:
            _kill(handle)
            raise
        if seat.fault:
            _kill(handle)
        else:
            seat.handle, seat.in_flight, seat.ready = handle, 0, True


async def _answered(handle: Any, method: str, arguments: tuple[Any, ...]) -> str:
    """Return what a method of an actor returns.

    Deadlines are kept by the actor. Here it is asked from time to time whether it lives.

    Raises:
        RayError: the actor died or failed.
        TimeoutError: it does not say that it lives.
    """
    import ray

    reference = getattr(handle, method).remote(*arguments)
    answer = asyncio.wrap_future(reference.future())
    try:
        while not (await asyncio.wait({answer}, timeout=_PING_SECONDS))[0]:
            ping = asyncio.wrap_future(handle.ping.remote().future())
            done, _ = await asyncio.wait(
                {ping, answer}, timeout=_DEAD_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                raise TimeoutError(f"it does not answer since {_DEAD_SECONDS:g} s")
    except asyncio.CancelledError:
        ray.cancel(reference)
        raise
    return str(answer.result())


def _kill(handle: Any) -> None:
    """End an actor, which may have ended already."""
    import ray

    if handle is not None:
        with contextlib.suppress(ray.exceptions.RayError, ValueError):  # it is gone already
            ray.kill(handle)


def _reason(error: BaseException) -> str:
    """Return what an error of Ray says, without the ids and hints that follow."""
    text = " ".join(str(error).split())
    for mark in (" class_name:", " rpc_code:", " The task may"):
        text = text.partition(mark)[0]
    return f"{text:.200}" or type(error).__name__
