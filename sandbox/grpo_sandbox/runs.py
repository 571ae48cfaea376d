"""One program on its way through a pool: its calls, what they have cost, and where it is given up."""

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

PATIENCE = 2
"""After so many inputs that ran out of time, a program gets no more time."""
FAILURES = 5
"""So many failures of one input, each followed by a passing probe, are the program's own doing."""
TOTAL_WALL_FACTOR = 6
"""Where `Limits.total_seconds` is None, a program may take so many times the time of one call."""
LITTLE_CPU = 0.25
"""A call that waited until its deadline and used less than this share of its CPU time may have been
kept from running."""
FROM_OUTSIDE = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGKILL, signal.SIGTERM)
"""Signals by which machines and people end processes; the others come of what a program does."""
LATE = ("timeout_cpu", "timeout_wall")


def is_suspicious(reply: Mapping[str, Any], limits: Mapping[str, Any]) -> bool:
    """Return whether the infrastructure may be behind what a supervisor reports of a call."""
    if reply["status"] == "signal":
        status = reply["exit"]
        return os.WIFSIGNALED(status) and os.WTERMSIG(status) in FROM_OUTSIDE
    little = reply["cpu_seconds"] < LITTLE_CPU * limits["cpu_seconds"]
    return bool(reply["status"] == "timeout_wall" and little)


@dataclass(slots=True)
class Run:
    """A program with what its calls have shown so far. Several threads work on it.

    Attributes:
        suspect: whether one of its inputs failed and has not been cleared since.
        unavailable: why one of its inputs could not be judged; then the others need no outcome either.
        abandoned: whether nobody waits for its outcomes any more.
        walls: seconds for which each input has run so far, in all its tries, by place.
        outcomes: those that are settled, by place.
    """

    program: Program
    limits: dict[str, Any]
    suspect: bool = False
    unavailable: str = ""
    abandoned: bool = False
    walls: dict[int, float] = field(default_factory=dict)
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def budget_seconds(self) -> float:
        """The wall time of all its calls together."""
        own = self.program.limits.total_seconds
        return TOTAL_WALL_FACTOR * self.program.limits.wall_seconds if own is None else own

    def add_wall(self, place: int, seconds: float) -> None:
        """Count what a call of the input at `place` has taken."""
        with self.lock:
            self.walls[place] = self.walls.get(place, 0.0) + seconds

    def settle(self, place: int, outcome: Outcome) -> Outcome:
        """Record and return the outcome of the input at `place`."""
        with self.lock:
            self.outcomes[place] = outcome
        return outcome

    def outcome_if_given_up(self, place: int) -> Outcome | None:
        """Return the outcome of an input that is not run because of those before it, or None."""
        with self.lock:
            earlier = [number for number in sorted(self.outcomes) if number < place]
            return self._end_of(earlier)

    def has_spent_all(self, place: int) -> bool:
        """Return whether the inputs up to `place` have used up the program's wall time."""
        with self.lock:
            spent = sum(wall for number, wall in self.walls.items() if number <= place)
        return spent >= self.budget_seconds

    def final_outcomes(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Return the outcomes as they count.

        Inputs behind the one at which the program was given up count as not run also where another
        jail had run them: an outcome must not depend on how many jails there are.
        """
        with self.lock:
            self.outcomes = dict(enumerate(outcomes))
            for place in range(1, len(outcomes)):
                if (rest := self._end_of(range(place))) is not None:
                    return [*outcomes[:place], *[rest] * (len(outcomes) - place)]
        return list(outcomes)

    def _end_of(self, places: Sequence[int]) -> Outcome | None:
        """Return what inputs after `places` get if these are the reason to give the program up."""
        outcomes = [self.outcomes[place] for place in places]
        if not outcomes:
            return None
        convicted = next((outcome for outcome in outcomes if outcome.suspected), None)
        if convicted is not None:
            error = "not run: the program had ended badly on an earlier input"
            return Outcome(
                convicted.status, error=f"{error} ({convicted.error})"[:500], suspected=True
            )
        late = [outcome.status for outcome in outcomes if outcome.status in LATE]
        if len(late) >= PATIENCE:
            error = f"not run: it had run out of time on {PATIENCE} inputs before"
            return Outcome("timeout_wall", error=error, suspected="timeout_wall" in late)
        if sum(self.walls.get(place, 0.0) for place in places) >= self.budget_seconds:
            return self.out_of_time()
        return None

    def out_of_time(self) -> Outcome:
        """Return what an input gets once the program's wall time is used up."""
        error = f"not run: the program had used up its {self.budget_seconds:g} s for all inputs"
        return Outcome("timeout_wall", error=error, suspected=True)


@dataclass(frozen=True, slots=True)
class Job:
    """One input of a run; `arguments` as `inside.values.encode` gives them."""

    run: Run
    place: int
    arguments: list[Any]
    future: Future[Outcome]


def cancel(rows: Sequence[Sequence[Job]]) -> bool:
    """Leave no work behind for which others would wait; return whether there was any."""
    unfinished = [job for job in itertools.chain.from_iterable(rows) if not job.future.done()]
    for job in unfinished:
        job.run.abandoned = True
        job.future.cancel()
    return bool(unfinished)
