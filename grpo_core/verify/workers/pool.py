"""Manage a pool of worker processes, which can be ended at any time and are replaced as needed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from grpo_core.calls.deadline import DeadlineError, Slots, describe, in_thread, within
from grpo_core.calls.process import WorkerProcess, remove_leftover_folders
from grpo_core.calls.wire import InvalidReplyError, Reply


class WorkerLostError(Exception):
    """A worker could not start, died, or was closed while in use: an infrastructure error."""


class WorkerPool:
    """Send requests to worker processes, one request at a time to each.

    Workers are started when needed. Requests that find no free worker wait.
    """

    def __init__(
        self,
        boot: Mapping[str, Any],
        *,
        size: int,
        start_seconds: float,
        memory_mb: float,
        further_variables: Iterable[str] = (),
        namespace: str = "auto",
    ) -> None:
        """Prepare the pool; no worker is started yet.

        Args:
            boot: the first message to each worker.
            size: maximum number of workers.
            start_seconds: timeout of a worker's start.
            memory_mb: a worker that uses more memory after a request is replaced.
            further_variables: names of environment variables that workers inherit in addition to
                the usual ones.
            namespace: as for `WorkerProcess`.
        """
        self._boot = boot
        self._further_variables, self._namespace = tuple(further_variables), namespace
        self._slots = Slots(size)
        self._start_seconds = start_seconds
        self._memory_mb = memory_mb
        self._idle: list[WorkerProcess] = []
        self._busy: set[WorkerProcess] = set()
        self._end_threads: list[threading.Thread] = []
        self._closed = False
        remove_leftover_folders()

    async def ask(self, request: Mapping[str, Any], *, seconds: float) -> Reply:
        """Send a request to a free worker and return its reply.

        Args:
            request: the request, without its timeout.
            seconds: the timeout.

        Raises:
            DeadlineError: there was no reply in time; the worker has been killed.
            WorkerLostError: the worker died, or sent an invalid reply and has been killed.
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
        """End every worker and wait until all have ended."""
        self._closed = True
        for worker in list(self._busy):
            self._begin_end(worker)
        for worker in self._idle:
            self._begin_end(worker, politely=True)
        self._idle.clear()
        for thread in self._end_threads:
            await in_thread(thread.join)

    def _take_idle(self) -> WorkerProcess | None:
        while self._idle:
            worker = self._idle.pop()
            if worker.ready:
                self._busy.add(worker)
                return worker
            self._begin_end(worker)
        return None

    async def _start(self) -> WorkerProcess:
        """Start a worker and return it when it has built its environment."""
        if self._closed:
            raise WorkerLostError("the verifier is closed")
        try:
            worker = WorkerProcess(self._further_variables, namespace=self._namespace)
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
        """Send a message to a worker and return its checked reply; end the worker on any failure.

        No later request can then get a reply that belongs to this one.
        """
        try:
            return await within(in_thread(worker.ask, message), seconds)
        except asyncio.CancelledError:
            self._begin_end(worker)
            raise
        except Exception as error:
            await self._end(worker)
            if isinstance(error, DeadlineError):
                raise DeadlineError(worker.last_words()) from None
            if isinstance(error, OSError | EOFError):
                text = "the verifier is closed" if self._closed else worker.post_mortem()
            elif isinstance(error, InvalidReplyError):
                text = f"the worker's reply is invalid: {error}{worker.last_words()}"
            else:
                text = f"the exchange with the worker failed: {describe(error)}"
            raise WorkerLostError(text) from error

    async def _end(self, worker: WorkerProcess) -> None:
        """End a worker and wait until it has ended."""
        await in_thread(self._begin_end(worker).join)

    def _begin_end(self, worker: WorkerProcess, *, politely: bool = False) -> threading.Thread:
        """Start to end a worker in a thread, and return the thread.

        Args:
            worker: the worker.
            politely: passed on to `WorkerProcess.end`.
        """
        self._busy.discard(worker)
        thread = threading.Thread(
            target=worker.end, kwargs={"politely": politely}, name="grpo worker end"
        )
        thread.start()
        self._end_threads = [*(t for t in self._end_threads if t.is_alive()), thread]
        return thread
