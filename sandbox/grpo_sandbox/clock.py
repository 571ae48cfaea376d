"""Measures from outside whether a call that lasts long waits for a core, or only waits.

The kernel counts for each thread how long it ran and how long it waited for a core
(`/proc/PID/task/TID/schedstat`), so a program that sleeps can be told from one that a busy machine
keeps from running. Nothing of this is done in the jail: its supervisor must not learn anything of a
program, and a jail of bubblewrap has no /proc.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from grpo_sandbox.inside.watch import tick_seconds

_PROC = Path("/proc")
_NANO = 1e-9
_HALTED = "TtD"
"""States in which a thread neither runs nor waits for a core: stopped, traced, frozen, or waiting
for a disk."""
_LATE_TICKS = 3.0
"""The most ticks from one time that a supervisor wakes up to the next, without a stop."""


@dataclass(frozen=True, slots=True)
class KeptSeconds:
    """The time of a call in which its program may have been kept from running."""

    waited: float
    """Seconds in which it wanted a core and did not get a whole one."""
    unclear: float
    """Seconds in which it was stopped, or of which nothing is known."""


@dataclass(slots=True)
class _Thread:
    run: float
    """Seconds on a core."""
    wait: float
    """Seconds of waiting for a core, up to the last time that it got one."""
    state: str
    """One letter of the kernel: R for a thread that runs or waits for a core."""
    since: float
    """When it was first seen in this state without a change of `run` or `wait` since."""

    def pending(self, now: float) -> float:
        """Return the seconds of waiting that the kernel adds once the thread gets a core."""
        return now - self.since if self.state == "R" else 0.0


class CoreClock:
    """Follows the processes below one supervisor during one call.

    Args:
        supervisor: The supervisor's process as this process sees it.
        wall_seconds: The time limit of the call, which decides how often `sample` is needed.

    Attributes:
        tick: Seconds between two calls of `sample`.
    """

    def __init__(self, supervisor: int, wall_seconds: float) -> None:
        self.tick = tick_seconds(wall_seconds)
        self._supervisor = supervisor
        self._threads: dict[int, _Thread] = {}
        self._ended: list[_Thread] = []
        self._last = self._started = time.monotonic()
        self._beats: tuple[float, int] | None = None
        self._silent = 0.0
        self._unclear = 0.0

    def sample(self) -> None:
        """Read what the kernel has counted so far; to be called once per `tick`."""
        now = time.monotonic()
        passed, self._last = now - self._last, now
        earlier, self._threads = self._threads, dict(_threads_below(self._supervisor, now))
        for tid, thread in self._threads.items():
            before = earlier.pop(tid, None)
            if before is None and thread.run + thread.wait > now - self._started:
                # It is older than the call: only what is added from here on counts.
                self._ended.append(_Thread(-thread.run, -thread.wait, "", now))
            elif before and (before.run, before.wait, before.state) == (
                thread.run,
                thread.wait,
                thread.state,
            ):
                thread.since = before.since
        self._ended += earlier.values()
        states = [thread.state in _HALTED for thread in self._threads.values()]
        if any(states) or not states:
            self._unclear += passed
        self._listen(passed)

    def kept(self, wall: float, cpu: float) -> KeptSeconds | None:
        """Return how long the program may have been kept from running; None if nothing is known.

        Args:
            wall: The seconds of the call, as its supervisor measured them.
            cpu: Its seconds of CPU time, which also tell of processes that ended between samples.
        """
        threads = [*self._ended, *self._threads.values()]
        if not threads:
            return None
        run = sum(thread.run for thread in threads)
        wait = sum(thread.wait for thread in threads)
        wait += sum(thread.pending(self._last) for thread in self._threads.values())
        # Processes that take cores from each other wait for them, but the program has one then.
        waited = max(0.0, min(wait, wall - run))
        blind = max(0.0, self._started + wall - self._last - self.tick)
        silent = self._silent if self._silent > _LATE_TICKS * self.tick else 0.0
        return KeptSeconds(waited, self._unclear + silent + max(0.0, cpu - run) + blind)

    def _listen(self, passed: float) -> None:
        """Count the time as unclear in which the supervisor did not wake up once per tick.

        If it did not wait for a core either, all of its jail was stopped or frozen, whatever the
        states of the threads say.
        """
        self._silent += passed
        with suppress(OSError):
            _, waited, woken = _counters(_PROC / str(self._supervisor))
            before, self._beats = self._beats or (waited, woken), (waited, woken)
            if woken == before[1]:
                return
            waits, beats = waited - before[0], woken - before[1]
            if self._silent - waits > _LATE_TICKS * self.tick * beats:
                self._unclear += self._silent
            self._silent = 0.0


def only_child(pid: int) -> int | None:
    """Return the one child of a process, or None if there is another number or it is not known."""
    children = list(_children(pid))
    return children[0] if len(children) == 1 else None


def _children(pid: int) -> Iterator[int]:
    for tid in _task_ids(pid):
        with suppress(OSError):
            yield from map(int, (_PROC / f"{pid}/task/{tid}/children").read_text().split())


def _task_ids(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(path.name) for path in (_PROC / f"{pid}/task").iterdir()]
    return []


def _threads_below(supervisor: int, now: float) -> Iterator[tuple[int, _Thread]]:
    """Yield the threads of all processes below `supervisor`; those that end meanwhile are left."""
    waiting = list(_children(supervisor))
    while waiting:
        pid = waiting.pop()
        waiting.extend(_children(pid))
        for tid in _task_ids(pid):
            with suppress(OSError, IndexError, ValueError):
                folder = _PROC / f"{pid}/task/{tid}"
                run, wait, _ = _counters(folder)
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                yield tid, _Thread(run, wait, state, now)


def _counters(folder: Path) -> tuple[float, float, int]:
    """Return the seconds on a core and of waiting for one, and how often it got one."""
    run, wait, times = map(int, (folder / "schedstat").read_text().split())
    return run * _NANO, wait * _NANO, times
