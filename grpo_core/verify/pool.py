"""A pool of worker processes that can be ended at any moment and are replaced as needed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from grpo_core.calls.deadline import DeadlineError, Slots, describe, in_thread, within
from grpo_core.calls.process import WorkerProcess, remove_leftover_folders
from grpo_core.calls.replies import InvalidReplyError, Reply


class WorkerLostError(Exception):
    """A worker could not start, died, or was closed while it was needed: an infrastructure error."""


class WorkerPool:
    """At most `size` workers, started when needed, one request in flight in each; further requests wait.

    Args:
        boot: the first message of each worker.
        start_seconds: how long a worker may take to start.
        memory_mb: a worker that holds more after a request is replaced.
        further_variables: environment variables that workers inherit beyond the usual ones.
    """

    def __init__(
        self,
        boot: Mapping[str, Any],
        *,
        size: int,
        start_seconds: float,
        memory_mb: float,
        further_variables: Iterable[str] = (),
    ) -> None:
        self._boot = boot
        self._further_variables = tuple(further_variables)
        self._slots = Slots(size)
        self._start_seconds = start_seconds
        self._memory_mb = memory_mb
        self._idle: list[WorkerProcess] = []
        self._busy: set[WorkerProcess] = set()
        self._endings: list[threading.Thread] = []
        self._closed = False
        remove_leftover_folders()

    @property
    def pids(self) -> list[int]:
        """The processes that are there now."""
        return sorted(worker.pid for worker in [*self._idle, *self._busy])

    async def ask(self, request: Mapping[str, Any], *, seconds: float) -> Reply:
        """Return the reply of some worker.

        Raises:
            DeadlineError: there was none in time; the worker is dead by then.
            WorkerLostError: the worker died or broke the form of replies; it is dead by then.
        """
        async with self._slots.here():
            worker = self._take_idle() or await self._start()
            reply = await self._exchange(worker, {**request, "seconds": seconds}, seconds)
            if reply.memory_mb > self._memory_mb:
                await self._end(worker)
            else:
                self._busy.discard(worker)
                self._idle.append(worker)
            return reply

    async def close(self) -> None:
        """End every worker and wait until none is left."""
        self._closed = True
        for worker in list(self._busy):
            self._begin_end(worker)
        for worker in self._idle:
            self._begin_end(worker, politely=True)
        self._idle.clear()
        for thread in self._endings:
            await in_thread(thread.join)
        self._endings.clear()

    def _take_idle(self) -> WorkerProcess | None:
        while self._idle:
            worker = self._idle.pop()
            if worker.ready:
                self._busy.add(worker)
                return worker
            self._begin_end(worker)
        return None

    async def _start(self) -> WorkerProcess:
        """Start a worker, and return it when it has built its environment."""
        if self._closed:
            raise WorkerLostError("the verifier is closed")
        try:
            worker = WorkerProcess(self._further_variables)
        except OSError as error:
            raise WorkerLostError(f"the worker could not be started: {describe(error)}") from None
        self._busy.add(worker)
        try:
            reply = await self._exchange(worker, self._boot, self._start_seconds)
        except DeadlineError as error:
            raise WorkerLostError(
                f"the worker did not start within {self._start_seconds:g} s{error}"
            ) from None
        if reply.error is not None:
            await self._end(worker)
            raise WorkerLostError(f"the worker could not build the environment: {reply.error}")
        return worker

    async def _exchange(
        self,
        worker: WorkerProcess,
        message: Mapping[str, Any],
        seconds: float,
    ) -> Reply:
        """Ask a worker and check its reply; whatever goes wrong, the worker is ended.

        So no later request can get a reply that belongs to this one.
        """
        try:
            return await within(in_thread(worker.ask, message), seconds)
        except DeadlineError:
            await self._end(worker)
            raise DeadlineError(worker.last_words()) from None
        except (OSError, EOFError) as error:
            await self._end(worker)
            raise WorkerLostError(
                "the verifier is closed" if self._closed else worker.post_mortem()
            ) from error
        except InvalidReplyError as error:
            await self._end(worker)
            text = f"the worker's reply is invalid: {error}{worker.last_words()}"
            raise WorkerLostError(text) from None
        except asyncio.CancelledError:
            self._begin_end(worker)
            raise
        except Exception as error:
            await self._end(worker)
            raise WorkerLostError(
                f"the exchange with the worker failed: {describe(error)}"
            ) from error

    async def _end(self, worker: WorkerProcess) -> None:
        await in_thread(self._begin_end(worker).join)

    def _begin_end(self, worker: WorkerProcess, *, politely: bool = False) -> threading.Thread:
        self._busy.discard(worker)
        thread = threading.Thread(
            target=worker.end, kwargs={"politely": politely}, name="grpo worker end"
        )
        thread.start()
        self._endings = [t for t in self._endings if t.is_alive()] + [thread]
        return thread
