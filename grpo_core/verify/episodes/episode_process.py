"""Talk to one worker process that serves many episodes at once, and call services for them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from grpo_core.calls.call import Call, current_call
from grpo_core.calls.deadline import TICK_SECONDS, DeadlineError, in_thread
from grpo_core.calls.process import WorkerProcess
from grpo_core.calls.service_wire import BadValueError
from grpo_core.calls.wire import InvalidReplyError, Reply, parse_object, reply_from
from grpo_core.protocol.environment import Services
from grpo_core.protocol.executor import VERIFYING
from grpo_core.verify.workers.borrowed import names_of
from grpo_core.verify.workers.lending import Lending
from grpo_core.verify.workers.pool import WorkerLostError

_CANCEL_SECONDS = 1.0
"""How long a worker may take to answer that it has cancelled a request; then it is killed."""
_MOST_UNREAD = 16
"""How many messages of a worker wait in this process; it has to wait with further ones."""


class _Pending:
    """Hold a request that a worker is working on."""

    def __init__(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self.clock = current_call().inner(seconds)
        """Limits its time, from its start on."""
        self.reply: asyncio.Future[Reply] = loop.create_future()
        self.started: asyncio.Future[None] = loop.create_future()
        """Is done once the worker has taken it up, or is lost."""

    def start(self) -> None:
        """Note that the worker has taken it up, or will not."""
        if not self.started.done():
            self.clock.restart()
            self.started.set_result(None)


class EpisodeProcess:
    """Ask one worker process, which answers many requests at once.

    Attributes:
        episodes: the ids of the episodes that are open in it.
        retiring: whether it takes no further episodes.
        ended: whether it is gone, with all that its episodes had borrowed.
    """

    def __init__(
        self, services: Services, further_variables: Iterable[str], *, namespace: str = "auto"
    ) -> None:
        """Start the process.

        Args:
            services: what its episodes may use.
            further_variables: as for `WorkerProcess`.
            namespace: as for `WorkerProcess`.

        Raises:
            OSError: it cannot be started.
        """
        self.episodes: set[str] = set()
        self.retiring = self.ended = False
        self._names = names_of(services)
        self._process = WorkerProcess(further_variables, namespace=namespace)
        self._loop = asyncio.get_running_loop()
        self._pending: dict[str, _Pending] = {}
        self._given_up: set[str] = set()
        """Ids of requests whose reply nobody waits for."""
        self._lost: asyncio.Future[str] = self._loop.create_future()
        """Why the process can no longer be asked."""
        self._heard = time.monotonic()
        """When it sent something last."""
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._unread = threading.Semaphore(_MOST_UNREAD)
        self._lending = Lending(services, self._send)
        self._end_lock = asyncio.Lock()
        self._closing = False
        self._ending: asyncio.Task[None] | None = None
        for target in (self._write, self._read):
            threading.Thread(
                target=target, name=f"grpo episodes{target.__name__}", daemon=True
            ).start()

    async def start(self, boot: Mapping[str, Any], *, seconds: float) -> None:
        """Make the worker build its environment; call it once, before anything is asked.

        Raises:
            WorkerLostError: it could not, or not in time.
        """
        try:
            reply = await self.ask(boot, seconds=seconds, boots=True)
        except DeadlineError as error:
            text = f"the worker did not start within {seconds:g} s{error}"
            raise WorkerLostError(text) from None
        if reply.error is not None:
            raise WorkerLostError(f"the worker could not build the environment: {reply.error}")

    @property
    def boot_names(self) -> Mapping[str, Any]:
        """Return the names of the services, for the first message."""
        return self._names

    @property
    def alive(self) -> bool:
        """Return whether it can be asked."""
        return not self._lost.done()

    def when_lost(self, call: Callable[[], None]) -> None:
        """Call a function once, when the process can no longer be asked."""
        self._lost.add_done_callback(lambda _: call())

    async def ask(
        self, message: Mapping[str, Any], *, seconds: float, boots: bool = False
    ) -> Reply:
        """Return the reply to a request.

        The time is that of the environment's code without its calls of services, as far as these
        stop the clock. At the deadline the request is cancelled in the worker; one that does not
        answer even then is killed.

        Args:
            message: the request.
            seconds: its timeout, from when the worker takes it up.
            boots: whether it is the first message, for which no worker says that it has begun.

        Raises:
            DeadlineError: there was no reply in time.
            WorkerLostError: the worker died, was killed, or sent what is no message.
        """
        if not self.alive:
            raise WorkerLostError(self._lost.result())
        name = secrets.token_hex(16)  # which no other request's code can guess
        pending = _Pending(seconds)
        pending.clock.verifies |= message.get("op") in VERIFYING
        self._pending[name] = pending
        try:
            self._send({**message, "id": name})
            if not boots:
                await self._taken_up(pending, seconds)
            while not pending.reply.done() and (left := pending.clock.left()) > 0:
                await asyncio.wait({pending.reply}, timeout=max(left, TICK_SECONDS))
            if not pending.reply.done():
                await self._cancel(name, pending)
            reply = pending.reply.result()
        except asyncio.CancelledError:
            if not pending.reply.done() and self.alive:
                self._given_up.add(name)
                self._send({"cancel": name})
            raise
        finally:
            del self._pending[name]
            if pending.reply.done():
                pending.reply.exception()  # so that asyncio does not report one that nobody met
        stray = self._process.unmarked()
        if stray and not boots:
            reply = replace(reply, output="\n".join(filter(None, (reply.output, _STRAY, stray))))
        return _marked(reply, pending.clock)

    async def end(self, reason: str = "the verifier is closed", *, politely: bool = False) -> None:
        """End the process and everything that its episodes have borrowed.

        Args:
            reason: what requests in progress are told; how it ended is added.
            politely: let it close its episodes and its environment first.
        """
        self._closing = True
        async with self._end_lock:
            self._outbox.put(None)
            if not politely:
                self._lose(reason)
            await in_thread(self._process.end, politely=politely)
            self._lose(reason)
            await self._lending.close()
            self.ended = True

    async def dismiss(self, episode: str) -> None:
        """Forget an episode that was closed, and end what it has borrowed and left open."""
        self.episodes.discard(episode)
        await self._lending.dismiss(episode)

    def admit(self, episode: str) -> None:
        """Take up an episode, which is about to be opened."""
        self.episodes.add(episode)
        self._lending.admit(episode)

    def allow_socket(self, episode: str, path: str) -> None:
        """Allow the sessions of an episode to reach a socket of this machine."""
        self._lending.allow_socket(episode, path)

    async def _taken_up(self, pending: _Pending, seconds: float) -> None:
        """Wait until the worker begins to work on a request.

        One that sends nothing for `seconds` is blocked, and killed.
        """
        since = time.monotonic()
        while not pending.started.done():
            left = max(since, self._heard) + seconds - time.monotonic()
            if left <= 0:
                await self.end(f"the worker took up no request for {seconds:g} s: {_BLOCKED}")
                return
            await asyncio.wait({pending.started}, timeout=left)

    async def _cancel(self, name: str, pending: _Pending) -> None:
        """Cancel a request in the worker, or kill the worker; it raises DeadlineError."""
        self._send({"cancel": name})
        await asyncio.wait({pending.reply}, timeout=_CANCEL_SECONDS)
        if not pending.reply.done():
            await self.end(f"the worker was killed at a deadline: {_BLOCKED}")
            raise DeadlineError(f", and did not let itself be cancelled: {_BLOCKED}")
        if pending.reply.exception() is None:
            place = pending.reply.result().error or ""
            raise DeadlineError(place if place.startswith(";") else "")

    def _send(self, message: Mapping[str, Any]) -> None:
        """Send a message as soon as the worker takes it.

        Raises:
            TypeError, ValueError: it cannot be written as JSON.
        """
        self._outbox.put(json.dumps(message).encode())

    def _write(self) -> None:
        """Write the messages of the outbox to the worker; this is a thread."""
        while (body := self._outbox.get()) is not None:
            try:
                self._process.send(body)
            except (OSError, EOFError):
                return  # the reading thread learns why
            except ValueError as error:
                self._call_in_loop(self._fail, f"a message cannot be sent: {error}")
                return

    def _read(self) -> None:
        """Pass on what the worker sends; this is a thread."""
        while True:
            self._unread.acquire()
            try:
                body = self._process.receive()
            except InvalidReplyError as error:
                self._call_in_loop(self._fail, f"the worker's message is invalid: {error}")
                return
            except (OSError, EOFError, ValueError):  # ValueError: the pipe was closed meanwhile
                self._call_in_loop(self._fail, "")
                return
            self._call_in_loop(self._take, body)

    def _call_in_loop(self, function: Any, *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any longer
            self._loop.call_soon_threadsafe(function, *arguments)

    def _take(self, body: bytes) -> None:
        """Act on a message of the worker."""
        self._unread.release()
        self._heard = time.monotonic()
        try:
            message = parse_object(body)
            if "call" in message:
                asking = self._pending.get(str(message.get("request")))
                self._lending.call(message, asking.clock if asking else current_call())
            elif "drop" in message:
                self._lending.drop(message)
            else:
                self._settle(message)
        except (InvalidReplyError, BadValueError) as error:
            self._fail(f"the worker's message is invalid: {error}")

    def _settle(self, message: Mapping[str, Any]) -> None:
        """Pass on a reply, or note that a request was taken up.

        Raises:
            InvalidReplyError: it is neither.
        """
        name = str(message.get("id"))
        if message == {"id": name, "started": True}:
            if name in self._pending:
                self._pending[name].start()
            elif name not in self._given_up:
                raise InvalidReplyError("it begins a request that was not made")
            return
        reply = reply_from(message, name)
        if name in self._given_up:
            self._given_up.discard(name)
        elif name in self._pending and not self._pending[name].reply.done():
            self._pending[name].reply.set_result(reply)
        else:
            raise InvalidReplyError("it answers a request that was not made")

    def _fail(self, reason: str) -> None:
        """End the process in the background, since it cannot be asked any longer."""
        if self._closing:
            return
        self._closing = self.retiring = True

        async def end() -> None:
            await in_thread(self._process.end)
            await self.end(reason or self._process.post_mortem())

        self._ending = self._loop.create_task(end())

    def _lose(self, reason: str) -> None:
        """Tell all requests in progress that the worker is lost."""
        if self.alive:
            self._lost.set_result(f"{reason}{self._process.last_words()}")
        for pending in self._pending.values():
            pending.start()
            if not pending.reply.done():
                pending.reply.set_exception(WorkerLostError(self._lost.result()))


_STRAY = "(by threads or child processes of this worker, perhaps those of another attempt:)"
_BLOCKED = (
    "its event loop is blocked; an episode has to await, and to run code that blocks by "
    "asyncio.to_thread"
)


def _marked(reply: Reply, clock: Call) -> Reply:
    """Return the reply; a verdict is marked if a service requests not to cache it."""
    match reply.value:
        case {"verdict": dict(fields)} if not clock.cacheable:
            value = {"verdict": {**fields, "cacheable": False}}
            return replace(reply, value=value)
    return reply
