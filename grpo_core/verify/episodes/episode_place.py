"""Answer requests about episodes by a few worker processes, with many episodes in each."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Protocol

from grpo_core.calls.deadline import DeadlineError, Slots, describe
from grpo_core.config.settings import VerifyConfig
from grpo_core.protocol.environment import Services
from grpo_core.protocol.executor import Answer, EnvironmentToVerify, Place, Request
from grpo_core.verify.episodes.episode_process import EpisodeProcess
from grpo_core.verify.episodes.episodes import EpisodeSlots
from grpo_core.verify.workers.borrowed import names_of
from grpo_core.verify.workers.pool import WorkerLostError

_FEW = 8
"""A further worker is waited for rather than that one gets more episodes than this."""


class OpensServices(Protocol):
    """Opens and closes what episodes may use."""

    async def open(self) -> Services:
        """Return the services."""
        ...

    async def close(self) -> None:
        """Close those that were opened."""
        ...


class EpisodePlace:
    """Keep the episodes of an environment in worker processes (see `Place`).

    An episode stays in one worker; one that is opened goes to the worker with the fewest, unless it
    asks for one of its own. A worker that is lost takes its episodes with it. Requests that belong
    to no episode are answered elsewhere, so that a slow search for a reference holds up no episode.
    """

    def __init__(
        self,
        environment: EnvironmentToVerify,
        services: OpensServices,
        others: Callable[[Services], Place],
        *,
        size: int,
    ) -> None:
        """Prepare the place; nothing is started yet.

        Args:
            environment: the environment.
            services: opens what its episodes may use.
            others: returns what answers the other requests.
            size: the most workers.
        """
        self._environment, self._opens_services, self._make_others = environment, services, others
        self._services = Services()
        self._others: Place | None = None
        self._settings = VerifyConfig.model_validate(environment.settings)
        self._size = size
        stateful = environment.stateful
        self._slots = EpisodeSlots(1 if stateful else self._settings.max_concurrency)
        self._lone_slots = Slots(size)
        """Limits the workers that have one episode of their own."""
        self._workers: list[EpisodeProcess] = []
        self._starting: asyncio.Task[EpisodeProcess] | None = None
        self._closed = False

    async def open(self) -> None:
        """Open the services; workers are started when they are needed."""
        self._services = await self._opens_services.open()
        self._others = self._make_others(self._services)
        await self._others.open()

    async def ask(self, request: Request, *, seconds: float) -> Answer:
        """Return the answer of the episode's worker; see `Place.ask`."""
        assert self._others is not None, "open() comes first"
        if request.session is None:
            return await self._others.ask(request, seconds=seconds)
        try:
            if request.op == "close":
                return await self._close_episode(request, request.session, seconds)
            async with self._slots.here(request.op):
                if request.op == "open":
                    find = self._lone_worker if request.alone else self._worker_for
                    worker = await find(request.session)
                else:
                    worker = self._worker_of(request.session)
                if request.op == "agent" and (socket := request.arguments[0]["socket"]):
                    worker.allow_socket(request.session, socket)
                reply = await worker.ask(request.to_json(), seconds=seconds)
        except DeadlineError as error:
            return Answer("deadline", text=str(error))
        except WorkerLostError as error:
            return Answer("lost", text=str(error))
        if reply.memory_mb > self._settings.worker_memory_mb:
            worker.retiring = True
        if reply.error is not None:
            return Answer("raised", text=reply.error, output=reply.output)
        return Answer("value", reply.value, output=reply.output)

    async def close(self) -> None:
        """End the workers with their episodes."""
        self._closed = True
        if self._starting is not None:
            with contextlib.suppress(WorkerLostError):
                await self._starting
        workers, self._workers = self._workers, []
        await asyncio.gather(*(worker.end(politely=worker.alive) for worker in workers))
        if self._others is not None:
            await self._others.close()
        await self._opens_services.close()

    def _worker_of(self, episode: str) -> EpisodeProcess:
        """Return the worker of an episode.

        Raises:
            WorkerLostError: it is lost.
        """
        for worker in self._workers:
            if episode in worker.episodes and worker.alive:
                return worker
        raise WorkerLostError("the episode was lost with its worker process")

    async def _worker_for(self, episode: str) -> EpisodeProcess:
        """Return the worker that takes a new episode, which may have to be started.

        Raises:
            WorkerLostError: it cannot be started.
        """
        while True:
            self._workers = [worker for worker in self._workers if not worker.ended]
            takers = [each for each in self._workers if each.alive and not each.retiring]
            fewest = min(takers, key=lambda worker: len(worker.episodes), default=None)
            if fewest is not None and (not fewest.episodes or len(takers) >= self._size):
                break
            if self._starting is None:
                self._starting = asyncio.create_task(self._start())
                self._starting.add_done_callback(self._started)
            if fewest is not None and len(fewest.episodes) < _FEW:
                break
            await asyncio.shield(self._starting)
        fewest.admit(episode)
        return fewest

    async def _lone_worker(self, episode: str) -> EpisodeProcess:
        """Return a new worker that has no other episode, and ends with this one.

        Raises:
            WorkerLostError: it cannot be started.
        """
        slot = self._lone_slots.here()
        await slot.acquire()
        try:
            worker = await self._start()
        except BaseException:
            slot.release()
            raise
        worker.when_lost(slot.release)
        worker.retiring = True
        worker.admit(episode)
        return worker

    def _started(self, starting: asyncio.Task[EpisodeProcess]) -> None:
        self._starting = None
        if not starting.cancelled():
            starting.exception()  # whoever waits for it knows it

    async def _start(self) -> EpisodeProcess:
        """Start a worker and return it when it has built its environment.

        Raises:
            WorkerLostError: it cannot be started.
        """
        if self._closed:
            raise WorkerLostError("the verifier is closed")
        try:
            worker = EpisodeProcess(
                self._services,
                self._settings.worker_environment,
                namespace=self._settings.namespace,
            )
        except OSError as error:
            raise WorkerLostError(f"the worker could not be started: {describe(error)}") from None
        try:
            boot = self._environment.boot_message(names_of(self._services), episodes=True)
            await worker.start(boot, seconds=self._settings.worker_start_seconds)
        except BaseException:
            await worker.end()
            raise
        self._workers.append(worker)
        return worker

    async def _close_episode(self, request: Request, episode: str, seconds: float) -> Answer:
        """Close an episode and what it has borrowed, and end a retiring worker after its last."""
        try:
            worker = self._worker_of(episode)
        except WorkerLostError:
            return Answer("value")
        try:
            reply = await worker.ask(request.to_json(), seconds=seconds)
        finally:
            await worker.dismiss(episode)
            if worker.retiring and not worker.episodes:
                self._workers.remove(worker)
                await worker.end(politely=True)
        return Answer("value") if reply.error is None else Answer("raised", text=reply.error)
