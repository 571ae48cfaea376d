"""The run of one program in a pool: its calls, the time they took, and when the run is given up."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from grpo_core import Outcome, Program
from grpo_sandbox.clock import KeptSeconds

PATIENCE = 2
"""After this number of inputs that ran out of time, a program gets no more time."""
FAILURES = 5
"""After this number of failures of one input, each followed by a passing probe, the program is to
blame."""
MAX_LOST_STARTS = 10
"""After this number of jails that could not be started for one input or session, while the probe's
could, the sandbox counts as unavailable."""
TOTAL_WALL_FACTOR = 6
"""If `Limits.total_seconds` is None, all calls of a program may take this many times the time limit
of one call."""
LITTLE_CPU = 0.25
"""A call that waited until its deadline and used less than this share of its CPU time may have been
kept from running, where nothing else is known about it."""
KEPT_SHARE = 0.1
"""A timeout is the program's own if it was kept from running for less than this share of its
time."""
STRETCH_AFTER_STOP, LONGEST_STRETCH = 3.0, 20.0
"""A program that was kept from running gets at most this many times its wall time when it is tried
again: first after a stop, which it may have made itself, then after waiting for a core."""
_ROOM = 1.5
FROM_OUTSIDE = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGKILL, signal.SIGTERM)
"""Signals by which machines and people end processes; the others are caused by the program."""
LATE = ("timeout_cpu", "timeout_wall")


def is_suspicious(reply: Mapping[str, Any], limits: Mapping[str, Any]) -> bool:
    """Return whether the infrastructure may be the cause of what a supervisor reports of a call.

    Args:
        reply: As `Jail.call` returns it.
        limits: Those of the program, which may have had more when it was tried again.
    """
    if reply["status"] == "signal":
        status = reply["exit"]
        return os.WIFSIGNALED(status) and os.WTERMSIG(status) in FROM_OUTSIDE
    if reply["status"] != "timeout_wall":
        return False
    kept: KeptSeconds | None = reply["kept"]
    if kept is None:
        return bool(reply["cpu_seconds"] < LITTLE_CPU * limits["cpu_seconds"])
    wall: float = reply["wall_seconds"]
    own, doubt = wall - kept.waited - kept.unclear, KEPT_SHARE * wall
    has_had_its_time = own - doubt >= (1 - KEPT_SHARE) * limits["wall_seconds"]  # when tried again
    return not (wall - own < doubt or has_had_its_time)


def stretch(reply: Mapping[str, Any]) -> float:
    """Return by what to multiply the wall time of the next attempt of a call that was too late.

    If it is kept from running for the same share of that time, it has all of its own, and some
    more.
    """
    kept: KeptSeconds | None = reply["kept"]
    wall: float = reply["wall_seconds"]
    if reply["status"] != "timeout_wall" or kept is None:
        return 1.0
    longest = LONGEST_STRETCH if kept.waited >= kept.unclear else STRETCH_AFTER_STOP
    own = wall - kept.waited - kept.unclear
    return min(longest, _ROOM * wall / max(own, wall / longest))


def stretched(limits: Mapping[str, Any], factor: float) -> dict[str, Any]:
    """Return `limits` with the wall time multiplied by `factor`."""
    return {**limits, "wall_seconds": factor * limits["wall_seconds"]}


@dataclass(slots=True)
class ProgramRun:
    """A program with the results of its calls so far. Several threads work on it."""

    program: Program
    """The program."""
    limits: dict[str, Any]
    """Limits of a call, in the form that a supervisor takes."""
    suspect: bool = False
    """Whether one of its inputs failed and has had no outcome since."""
    unavailable: str = ""
    """Why one of its inputs could not be judged; then the others need no outcome either."""
    abandoned: bool = False
    """Whether the caller no longer waits for its outcomes."""
    walls: dict[int, float] = field(default_factory=dict)
    """Seconds for which each input has run so far, in all its attempts, without those in which it
    waited for a core; by index of the input."""
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    """The settled outcomes, by index of the input."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Guards `walls` and `outcomes`."""

    @property
    def budget_seconds(self) -> float:
        """The limit to the wall time of all calls together."""
        own = self.program.limits.total_seconds
        return TOTAL_WALL_FACTOR * self.program.limits.wall_seconds if own is None else own

    def add_wall(self, index: int, reply: Mapping[str, Any]) -> None:
        """Add the wall time of a call to that of the input at `index`."""
        waited = reply["kept"].waited if reply["kept"] else 0.0
        with self.lock:
            self.walls[index] = self.walls.get(index, 0.0) + reply["wall_seconds"] - waited

    def settle(self, index: int, outcome: Outcome) -> Outcome:
        """Record and return the outcome of the input at `index`."""
        with self.lock:
            self.outcomes[index] = outcome
        return outcome

    def outcome_if_given_up(self, index: int) -> Outcome | None:
        """Return the outcome of an input that is not run because of those before it, or None."""
        with self.lock:
            earlier = [number for number in sorted(self.outcomes) if number < index]
            return self._outcome_after(earlier)

    def has_spent_all(self, index: int) -> bool:
        """Return whether the inputs up to `index` have used up the program's wall time."""
        with self.lock:
            spent = sum(wall for number, wall in self.walls.items() if number <= index)
        return spent >= self.budget_seconds

    def final_outcomes(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Return the final outcomes.

        Inputs after the one at which the program was given up count as not run, even if another
        jail had run them: an outcome must not depend on the number of jails.
        """
        with self.lock:
            self.outcomes = dict(enumerate(outcomes))
            for index in range(1, len(outcomes)):
                if (skipped := self._outcome_after(range(index))) is not None:
                    return [*outcomes[:index], *[skipped] * (len(outcomes) - index)]
        return list(outcomes)

    def _outcome_after(self, indices: Sequence[int]) -> Outcome | None:
        """Return the outcome of the inputs after `indices` if the program is given up at those."""
        outcomes = [self.outcomes[index] for index in indices]
        if not outcomes:
            return None
        convicted = next((outcome for outcome in outcomes if self._ends_the_run(outcome)), None)
        if convicted is not None:
            error = "not run: the program had ended badly on an earlier input"
            return Outcome(
                convicted.status,
                error=f"{error} ({convicted.error})"[:500],
                suspected=convicted.suspected,
            )
        late = [outcome.status for outcome in outcomes if outcome.status in LATE]
        if len(late) >= PATIENCE:
            error = f"not run: it had run out of time on {PATIENCE} inputs before"
            return Outcome("timeout_wall", error=error, suspected="timeout_wall" in late)
        if sum(self.walls.get(index, 0.0) for index in indices) >= self.budget_seconds:
            return self.out_of_time()
        return None

    def _ends_the_run(self, outcome: Outcome) -> bool:
        """Return whether an input that ended so is the last one: a program that waits, not works.

        It would do so again, while hard work may be due to this input alone.
        """
        idle = outcome.cpu_seconds < LITTLE_CPU * self.program.limits.cpu_seconds
        return outcome.suspected or (outcome.status == "timeout_wall" and idle)

    def out_of_time(self) -> Outcome:
        """Return the outcome of an input for which no wall time of the program is left."""
        error = f"not run: the program had used up its {self.budget_seconds:g} s for all inputs"
        return Outcome("timeout_wall", error=error, suspected=True)


@dataclass(frozen=True, slots=True)
class ProgramJob:
    """One input of a run."""

    run: ProgramRun
    """The run."""
    index: int
    """Index of the input."""
    arguments: list[Any]
    """The input as `inside.values.encode` returns it."""
    future: Future[Outcome]
    """Gets the outcome."""


def cancel(rows: Sequence[Sequence[ProgramJob]]) -> bool:
    """Cancel unfinished jobs, for which others would wait; return whether there were any."""
    unfinished = [job for job in itertools.chain.from_iterable(rows) if not job.future.done()]
    for job in unfinished:
        job.run.abandoned = True
        job.future.cancel()
    return bool(unfinished)
