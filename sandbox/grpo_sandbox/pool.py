"""Programs over jails: a thread for each jail, calls in the order in which they came, a fresh jail wherever one is not as it was."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import os
import queue
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from typing import Any

from grpo_core import ConfigError, Outcome, Program
from grpo_sandbox.jail import Jail, JailLostError, limits_to_json
from grpo_sandbox.outcome import outcome
from grpo_sandbox.supervisor import Unsayable, encode

JOBS_PER_JAIL = 5000
DEATHS = 2
"""So many supervisors lost to the same program are no accident, nor are so many of its processes that SIGKILL ended."""
PATIENCE = 2
"""After so many time-outs, a program gets no more time: 24 inputs of one that hangs would cost as much as thousands of others."""


_LATE = ("timeout_cpu", "timeout_wall")
_NO_MORE_TIME = Outcome("timeout_wall", error=f"not run: it had run out of time on {PATIENCE} inputs before")


@dataclass(slots=True)
class _Run:
    """A program on its way through the pool. deaths: supervisors that it ended. kills: how often SIGKILL ended it. broken: why one of its
    inputs got no outcome; then the others need none, either. late: places of inputs that ran out of time."""

    program: Program
    limits: dict[str, Any]
    deaths: int = 0
    kills: int = 0
    broken: str = ""
    late: list[int] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True, slots=True)
class _Job:
    run: _Run
    place: int
    arguments: list[Any]
    future: Future[Outcome]


class JailPool:
    """A `grpo_core.Sandbox` over `size` jails that `start` makes; each is replaced after JOBS_PER_JAIL calls and after any anomaly.

    config: the settings of the back end, which sets it."""

    config: Any

    def __init__(self, start: Callable[[], Jail], *, size: int) -> None:
        if size < 1:
            raise ConfigError(f"sandbox.settings.jails is {size}; at least 1 is needed, or nothing would ever run")
        self._start = start
        self._size = size
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self.started = 0

    async def run(self, programs: Sequence[Program]) -> Sequence[Sequence[Outcome]]:
        """Every program on each of its inputs; the caller waits for its turn behind earlier calls."""
        self._grow()
        futures = [self._submit(program) for program in programs]
        try:
            return [_cut([await asyncio.wrap_future(future) for future in row]) for row in futures]
        finally:
            for future in itertools.chain.from_iterable(futures):  # a caller who gave up leaves no work behind which others would wait
                future.cancel()

    def fingerprint(self) -> str:
        """Of what decides an outcome: the back end and its settings, but for how many jails there are."""
        settings = {name: value for name, value in asdict(self.config).items() if name != "jails"}
        return hashlib.sha256(json.dumps([type(self).__qualname__, settings], sort_keys=True).encode()).hexdigest()[:16]

    async def close(self) -> None:
        """End every jail. The pool starts again when it is asked again."""
        with self._lock:
            threads, self._threads = self._living(), []
        for _ in threads:
            self._jobs.put(None)
        for thread in threads:
            await asyncio.to_thread(thread.join)

    def _grow(self) -> None:
        with self._lock:
            self._threads = self._living()
            while len(self._threads) < self._size:
                thread = threading.Thread(target=self._serve, name="grpo sandbox", daemon=True)
                thread.start()
                self._threads.append(thread)

    def _living(self) -> list[threading.Thread]:
        return [thread for thread in self._threads if thread.is_alive()]

    def _submit(self, program: Program) -> list[Future[Outcome]]:
        run = _Run(program, limits_to_json(program.limits))
        futures = []
        for place, arguments in enumerate(program.inputs):
            future: Future[Outcome] = Future()
            futures.append(future)
            try:
                self._jobs.put(_Job(run, place, [encode(argument) for argument in arguments], future))
            except Unsayable as error:
                future.set_exception(TypeError(f"an input of the program cannot be sent: {error}"))
        return futures

    def _serve(self) -> None:
        """One thread's life: jobs from the shared queue, through a jail of its own."""
        jail: Jail | None = None
        try:
            while (job := self._jobs.get()) is not None:
                if job.future.set_running_or_notify_cancel():  # from here on it can no longer be cancelled
                    jail = self._settle(job, jail)
        finally:
            if jail is not None:
                jail.close()

    def _settle(self, job: _Job, jail: Jail | None) -> Jail | None:
        """Give the job's caller what it waits for, and return the jail for the next job. If the thread died here, callers would wait for
        ever."""
        try:
            found, jail = self._carry_out(job, jail)
        except Exception as error:  # noqa: BLE001 - whoever waits hears of it
            job.future.set_exception(error)
            with contextlib.suppress(Exception):  # a jail that is broken may not even end as it should
                if jail is not None:
                    jail.close()
            return None
        job.future.set_result(found)
        return jail

    def _carry_out(self, job: _Job, jail: Jail | None) -> tuple[Outcome, Jail | None]:
        """The outcome, after at most one more try in a fresh jail, and the jail for the next job."""
        run = job.run
        if sum(place < job.place for place in run.late) >= PATIENCE:
            return _NO_MORE_TIME, jail
        why = run.broken
        for _ in range(0 if run.broken else DEATHS):
            try:
                if jail is None:
                    jail = self._start()
                    self.started += 1
            except JailLostError as error:
                why = str(error)
                continue
            try:
                reply = jail.call(run.program.source, run.program.entry, job.arguments, run.limits)
            except JailLostError as error:
                jail.close()
                jail, why = None, str(error)
                with run.lock:
                    run.deaths += 1
                    if run.deaths >= DEATHS:
                        return Outcome("signal", error=f"it ended {run.deaths} supervisors; the last time: {why}"), None
                continue
            if not reply["clean"] or jail.jobs >= JOBS_PER_JAIL:
                jail.close()
                jail = None
            if reply["status"] == "signal" and os.WTERMSIG(reply["exit"]) == signal.SIGKILL:
                # Its own doing, or that of a machine short of memory, whose choice falls on programs first: those run once more.
                with run.lock:
                    run.kills += 1
                    if run.kills < DEATHS:
                        continue
            found = outcome(reply, run.program.limits)
            if found.status in _LATE:
                run.late.append(job.place)
            return found, jail
        run.broken = why
        return Outcome("infra_error", error=why), jail


def _cut(outcomes: list[Outcome]) -> list[Outcome]:
    """Inputs behind the last time-out that is allowed count as not run, also where another jail had run them: an outcome must not depend
    on how many jails there are."""
    late = [place for place, found in enumerate(outcomes) if found.status in _LATE][:PATIENCE]
    return outcomes if len(late) < PATIENCE else [*outcomes[: late[-1] + 1], *[_NO_MORE_TIME] * (len(outcomes) - late[-1] - 1)]
