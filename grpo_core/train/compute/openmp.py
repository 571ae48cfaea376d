"""On a CPU: one set of waiting threads instead of two.

OpenMP gives each thread that computes a set of helpers, which wait for the next piece of work by spinning: decoding one token is thousands
of pieces, and waking a helper that sleeps costs more than most of them take. With a second set (ours decodes in a thread of its own) there
are more helpers than cores, and libgomp lets all of them sleep almost at once (its manual: GOMP_SPINCOUNT); a rollout took 1.8 times as
long. So a thread gives its helpers back before another one computes.

Where programs of others want the same cores, spinning is what hurts (a step took 2.5 times as long beside one busy process), so there the
helpers are kept, both sets, and sleep.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time

import psutil
import torch

SLACK = 0.2
"""So many cores may be busy elsewhere besides."""
PARALLEL = 2**20
"""A tensor of so many numbers is filled by all threads."""
SHORTEST = 0.2
"""Seconds that tell anything about what the others do."""
_HARD = 2  # omp_pause_hard


class Helpers:
    """Those of the threads of this process, of which one computes at a time. Whether the cores are its own is judged by the last time that
    another thread computed, or by the time since this module was imported."""

    def __init__(self) -> None:
        self._handed_over = False
        self._before = STARTED
        self._alone = True
        self._judge()

    def hand_over(self) -> None:
        """Before another thread computes: give the calling thread's helpers back if the cores are ours, and keep them otherwise."""
        self._handed_over = self._alone
        if self._handed_over:
            release()
        else:
            torch.zeros(PARALLEL)  # so that there are helpers to keep
        self._before = _clock()

    def hand_back(self) -> None:
        """From that thread, when it is done."""
        if self._handed_over:
            release()
        self._judge()

    def _judge(self) -> None:
        passed, own, every = (now - then for now, then in zip(_clock(), self._before, strict=True))
        if passed > SHORTEST:  # the system counts in hundredths
            self._alone = (
                max(0.0, every - own) / passed + torch.get_num_threads() <= _cores() + SLACK
            )


def release() -> None:
    """End the helpers of the calling thread; its next piece of work makes new ones. Does nothing where OpenMP cannot (before 5.0)."""
    if (
        sys.platform == "linux"
        and (pause := getattr(ctypes.CDLL(None), "omp_pause_resource_all", None)) is not None
    ):
        pause(_HARD)


def _clock() -> tuple[float, float, float]:
    """Seconds: of the clock, of CPU time of this process, and of all."""
    own, every = psutil.Process().cpu_times(), psutil.cpu_times()
    idle = every.idle + getattr(every, "iowait", 0.0)
    twice = getattr(every, "guest", 0.0) + getattr(
        every, "guest_nice", 0.0
    )  # also in user and nice
    return time.monotonic(), own.user + own.system, sum(every) - idle - twice


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


STARTED = _clock()
"""When this was imported; once a model is loaded, that is long enough ago."""
