"""A sandbox made of jails: each jail has a thread, and calls run in the order in which they came.

A jail that is not clean after a call is replaced by a fresh one.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from grpo_core import ConfigError, Limits, Outcome, Program, current_call
from grpo_sandbox.blame import BlameGate, UnavailableError
from grpo_sandbox.inside.values import NotPlainError, encode
from grpo_sandbox.jail import Jail, JailLostError, limits_to_json
from grpo_sandbox.outcome import outcome
from grpo_sandbox.runs import (
    FAILURES,
    MAX_LOST_STARTS,
    ProgramJob,
    ProgramRun,
    cancel,
    is_suspicious,
    stretch,
    stretched,
)
from grpo_sandbox.session import JailSession
from grpo_sandbox.sessions import SESSIONS, SessionPool, Start

JOBS_PER_JAIL = 5000
PATIENCE_SECONDS = 120.0
"""Default of how long verdicts wait for a sandbox that is unavailable."""
NOT_DECISIVE = ("jails", "sessions", "patience_seconds")
"""Settings on which no outcome depends."""
PROBE_SOURCE = "def probe(x): return x + 1"
PROBE_LIMITS = limits_to_json(Limits())


@dataclass(slots=True)
class _Slot:
    """The state of one thread."""

    jail: Jail | None = None
    """The jail that it keeps for its next job, if any."""
    run: ProgramRun | None = None
    """The run whose call is under way in the jail, if any."""
    interrupted: bool = False
    """Whether another thread ended that call because the run became suspect."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Guards `run` and `interrupted`."""

    def end_jail(self) -> None:
        """Close the jail, if there is one."""
        jail, self.jail = self.jail, None
        if jail is not None:
            jail.close()


@dataclass(frozen=True, slots=True)
class _Failure:
    """A failed call that has no outcome yet."""

    outcome: Outcome
    """The outcome if the program is to blame."""
    blamed: bool = True
    """Whether the program may have been the reason."""
    started: bool = True
    """Whether there was a jail to run the call in."""
    stretch: float = 1.0
    """By what to multiply the wall time of the next attempt."""


class JailPool:
    """A `grpo_core.Sandbox` of `size` jails.

    A jail is replaced after JOBS_PER_JAIL calls and after any anomaly.

    Args:
        start: Makes a jail, or raises JailLostError.
        size: Number of jails at once.
        start_session: Makes the jail of a session.
        sessions: Number of sessions at once, each of which has a jail of its own.
        name: Name of this sandbox in messages.
        patience_seconds: How long calls wait for a sandbox that cannot run programs at all.

    Attributes:
        config: The settings, which the back end sets.
        started: Number of jails made so far.
    """

    config: Any

    def __init__(
        self,
        start: Callable[[], Jail],
        *,
        size: int,
        start_session: Start | None = None,
        sessions: int = SESSIONS,
        name: str = "the sandbox",
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        if size < 1:
            raise ConfigError(
                f"sandbox.settings.jails is {size}; at least 1 is needed, or nothing would ever run"
            )
        self._make = start
        self._size = size
        self._jobs: queue.SimpleQueue[ProgramJob | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._slots: list[_Slot] = []
        self._spare: list[Jail] = []
        self._lock = threading.Lock()
        self._gate = BlameGate(name, self._probe, patience_seconds=patience_seconds)
        self._sessions = SessionPool(
            start_session or (lambda image, forbidden, bridge: start()),
            size=sessions,
            name=name,
            gate=self._gate,
        )
        self.started = 0

    async def run(self, programs: Sequence[Program]) -> Sequence[Sequence[Outcome]]:
        """Run every program on each of its inputs, after all earlier calls.

        The clock of the caller's deadline is stopped meanwhile: every call, every program and every
        wait for an unavailable sandbox has its own limit, and a program that could use up the time
        of its verdict could choose to be left out of the loss.
        """
        rows = [self._jobs_of(program) for program in programs]
        try:
            jobs = self._grow()
            for job in itertools.chain.from_iterable(rows):
                jobs.put(job)
            with current_call().stopped():
                outcomes = [
                    row[0].run.final_outcomes(
                        [await asyncio.wrap_future(job.future) for job in row]
                    )
                    if row
                    else []
                    for row in rows
                ]
            if any(outcome.suspected for row in outcomes for outcome in row):
                current_call().keep_out_of_caches()
            return outcomes
        finally:
            if cancel(rows):
                self._gate.wake()

    async def session(
        self,
        files: Mapping[str, str | bytes] | None = None,
        *,
        image: str | None = None,
        limits: Limits | None = None,
        socket: str | Path | None = None,
    ) -> JailSession:
        """Open a session; see `grpo_core.Sandbox.session`.

        The clock of the caller's deadline is stopped while it waits for its turn and for each
        command, which has its own limit.
        """
        self._gate.open()
        return await self._sessions.open(files or {}, image, limits or Limits(), socket)

    def fingerprint(self) -> str:
        """Return a digest of the back end and those settings that decide an outcome."""
        settings = {
            name: value for name, value in asdict(self.config).items() if name not in NOT_DECISIVE
        }
        text = json.dumps([type(self).__qualname__, settings], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    async def close(self) -> None:
        """End every session and jail; the pool starts again with the next `run` or `session`."""
        self._gate.close()
        await self._sessions.close()
        with self._lock:
            threads, self._threads = self._living(), []
            jobs, self._jobs = self._jobs, queue.SimpleQueue()
        for _ in threads:
            jobs.put(None)
        for thread in threads:
            await asyncio.to_thread(thread.join)
        with self._lock:
            spare, self._spare = self._spare, []
        for jail in spare:
            await asyncio.to_thread(jail.close)

    def keep_spare(self, jail: Jail) -> None:
        """Store a ready jail for the next thread that needs one."""
        with self._lock:
            self._spare.append(jail)

    def _grow(self) -> queue.SimpleQueue[ProgramJob | None]:
        """Start the threads that are missing, and return the queue from which they take jobs."""
        with self._lock:
            self._gate.open()
            self._threads = self._living()
            while len(self._threads) < self._size:
                arguments = (self._jobs,)
                thread = threading.Thread(
                    target=self._serve, args=arguments, name="grpo sandbox", daemon=True
                )
                thread.start()
                self._threads.append(thread)
            return self._jobs

    def _living(self) -> list[threading.Thread]:
        return [thread for thread in self._threads if thread.is_alive()]

    def _jobs_of(self, program: Program) -> list[ProgramJob]:
        run = ProgramRun(program, limits_to_json(program.limits))
        jobs = []
        for index, arguments in enumerate(program.inputs):
            try:
                encoded = [encode(argument) for argument in arguments]
            except NotPlainError as error:
                raise TypeError(f"an input of the program cannot be sent: {error}") from None
            jobs.append(ProgramJob(run, index, encoded, Future()))
        return jobs

    def _serve(self, jobs: queue.SimpleQueue[ProgramJob | None]) -> None:
        """Run jobs from a queue, one after the other, until `close` puts None into it."""
        slot = _Slot()
        with self._lock:
            self._slots.append(slot)
        try:
            while (job := jobs.get()) is not None:
                if job.future.set_running_or_notify_cancel():  # from here on it cannot be cancelled
                    self._settle(job, slot)
        finally:
            with self._lock:
                self._slots.remove(slot)
            slot.end_jail()

    def _settle(self, job: ProgramJob, slot: _Slot) -> None:
        """Give the job's caller an outcome or an exception in every case.

        If the thread died instead, callers would wait for ever.
        """
        try:
            result = self._outcome(job, slot)
        except Exception as error:  # noqa: BLE001 - the waiting caller gets it
            job.future.set_exception(error)
            with contextlib.suppress(Exception):  # a broken jail may even fail to end
                slot.end_jail()
        else:
            job.future.set_result(result)

    def _outcome(self, job: ProgramJob, slot: _Slot) -> Outcome:
        run = job.run
        if (skipped := self._skipped_outcome(job)) is not None:
            return skipped
        if not run.suspect:
            attempt = self._attempt(job, slot)
            if isinstance(attempt, Outcome):
                return run.settle(job.index, attempt)
            failure = attempt
        else:
            failure = _lost("another input of the program is under suspicion", blamed=False)
        try:
            return run.settle(job.index, self._retry_suspect(job, slot, failure))
        except UnavailableError as error:
            run.unavailable = str(error)
            return Outcome("infra_error", error=run.unavailable)

    def _skipped_outcome(self, job: ProgramJob) -> Outcome | None:
        """Return the outcome of an input that need not be run, or None."""
        run = job.run
        if run.unavailable or run.abandoned:
            return Outcome("infra_error", error=run.unavailable or "the request was cancelled")
        return run.outcome_if_given_up(job.index)

    def _attempt(self, job: ProgramJob, slot: _Slot, factor: float = 1.0) -> Outcome | _Failure:
        """Run the job once, in the jail of this thread or in a new one.

        Args:
            factor: By what the wall time of the call is multiplied.
        """
        run = job.run
        limits = stretched(run.limits, factor)
        try:
            if slot.jail is None:
                slot.jail = self._new_jail()
        except JailLostError as error:
            return _lost(str(error), blamed=False, started=False)
        jail = slot.jail
        with slot.lock:
            slot.run, slot.interrupted = run, False
        try:
            reply = jail.call(run.program.source, run.program.entry, job.arguments, limits)
        except JailLostError as error:
            lost = error
            reply = None
        finally:
            with slot.lock:
                slot.run = None
        if reply is None:
            slot.end_jail()
            if lost.out_of_memory:
                return Outcome("oom", error=f"it used more than its jail's memory: {lost}")
            return _lost(str(lost), blamed=not slot.interrupted)
        run.add_wall(job.index, reply)
        result = outcome(reply, run.program.limits)
        suspicious = is_suspicious(reply, run.limits)
        if suspicious or slot.interrupted or not reply["clean"] or jail.jobs >= JOBS_PER_JAIL:
            slot.end_jail()
        return _Failure(result, stretch=stretch(reply)) if suspicious else result

    def _retry_suspect(self, job: ProgramJob, slot: _Slot, failure: _Failure) -> Outcome:
        """Run a suspect again until it has an outcome, or has failed so often that it is to blame.

        Before each retry, a probe has to pass while no suspect runs.

        Raises:
            UnavailableError: The probe keeps failing, or other jails than the probe's do not start.
        """
        run, failures, lost_starts = job.run, 0, 0
        run.suspect = True
        while True:
            slot.end_jail()
            self._interrupt(run, slot)
            self._gate.wait(lambda: run.abandoned)
            if (skipped := self._skipped_outcome(job)) is not None:
                return skipped
            failures += failure.blamed
            lost_starts += not failure.started
            if failures >= FAILURES:
                return _program_failure(failure.outcome)
            if failure.blamed and run.has_spent_all(job.index):
                reason = failure.outcome.error[:400]
                error = f"{reason}; its {run.budget_seconds:g} s for all inputs are used up"
                return replace(failure.outcome, error=error, suspected=True)
            if lost_starts >= MAX_LOST_STARTS:
                raise UnavailableError(
                    f"{lost_starts} jails could not be started: {failure.outcome.error}"
                )
            with self._gate.suspect_running():
                attempt = self._attempt(job, slot, failure.stretch)
            if isinstance(attempt, Outcome):
                run.suspect = False
                return attempt
            failure = attempt

    def _interrupt(self, run: ProgramRun, own: _Slot) -> None:
        """End the calls of `run` that are under way in other threads."""
        with self._lock:
            others = [slot for slot in self._slots if slot is not own]
        for slot in others:
            with slot.lock:
                if slot.run is run and slot.jail is not None:
                    slot.interrupted = True
                    slot.jail.interrupt()

    def _new_jail(self) -> Jail:
        while (spare := self._take_spare()) is not None:
            if spare.is_alive:
                return spare
            spare.close()
        jail = self._make()
        self.started += 1
        return jail

    def _take_spare(self) -> Jail | None:
        with self._lock:
            return self._spare.pop() if self._spare else None

    def _probe(self) -> str:
        """Run a known-good program in a fresh jail; return why that failed, or ""."""
        try:
            jail = self._make()
        except JailLostError as error:
            return str(error)
        self.started += 1
        try:
            reply = jail.call(PROBE_SOURCE, "probe", [1], PROBE_LIMITS)
        except JailLostError as error:
            jail.close()
            return str(error)
        result = outcome(reply, Limits())
        if result.value != 2 or not reply["clean"]:
            jail.close()
            return f"a known-good program ended with {result.status} {result.error}".strip()
        self.keep_spare(jail)
        return ""


def _lost(reason: str, *, blamed: bool, started: bool = True) -> _Failure:
    return _Failure(Outcome("signal", error=reason), blamed, started)


def _program_failure(last: Outcome) -> Outcome:
    text = f"it failed {FAILURES} times where a known-good program ran; the last time: {last.error}"
    return replace(last, error=text[:500], suspected=True)
