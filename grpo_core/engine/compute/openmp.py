"""Keep at most one spinning set of OpenMP threads on a CPU.

OpenMP gives each thread that computes a set of helper threads, which wait for the next piece of
work by spinning: decoding one token takes thousands of pieces, and waking a sleeping helper costs
more than most of them take. With a second set (the built-in sampler decodes in a thread of its own)
there are more helpers than cores, and libgomp then lets all of them sleep almost at once (its
manual: GOMP_SPINCOUNT); a rollout took 1.8 times as long. So a thread releases its helpers before
another one computes.

Where other programs use the same cores, spinning itself does the harm (a step took 2.5 times as
long beside one busy process), so there both sets of helpers are kept, and sleep.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import torch

SLACK = 0.2
"""Load of other programs, in cores, that is tolerated beyond the cores left over."""
PARALLEL = 2**20
"""Size of a tensor that is large enough to be filled by all threads."""
SHORTEST = 0.2
"""Shortest interval, in seconds, over which the load by other programs is measured."""
_HARD = 2  # omp_pause_hard


class Helpers:
    """Manage the helper threads of this process, in which one thread computes at a time.

    Whether the cores are free of other programs is measured over the last time that another thread
    computed, or since this module was imported.
    """

    def __init__(self) -> None:
        self._handed_over = False
        self._before = STARTED
        self._alone = True
        self._measure_load()

    def hand_over(self) -> None:
        """Prepare for another thread to compute.

        Releases the helpers of the calling thread if the cores are free, and keeps them otherwise.
        """
        self._handed_over = self._alone
        if self._handed_over:
            release()
        else:
            torch.zeros(PARALLEL)  # so that there are helpers to keep
        self._before = _clock()

    def hand_back(self) -> None:
        """Release the helpers of the calling thread where `hand_over` released those of the first.

        To be called by the other thread when it is done.
        """
        if self._handed_over:
            release()
        self._measure_load()

    def _measure_load(self) -> None:
        """Measure whether the cores are free of other programs."""
        elapsed, own, total = (
            end - start for start, end in zip(self._before, _clock(), strict=True)
        )
        if elapsed > SHORTEST:  # the system counts hundredths of a second
            self._alone = (
                max(0.0, total - own) / elapsed + torch.get_num_threads() <= _cores() + SLACK
            )

    @property
    def are_alone(self) -> bool:
        """Return whether the cores were free of other programs when that was measured last."""
        return self._alone


@contextmanager
def considerate_threads(device: torch.device) -> Iterator[None]:
    """Compute in one thread inside the block if other programs use the cores of a CPU.

    Passes over a few tokens are hundreds of small pieces of work. Where the helpers spin for a core
    that another program has, each piece waits for the scheduler: a pass took 20 times as long.
    """
    threads = torch.get_num_threads()
    if device.type != "cpu" or Helpers().are_alone:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def release() -> None:
    """End the helper threads of the calling thread; its next piece of work starts new ones.

    Does nothing where OpenMP has no such call (before 5.0).
    """
    if (
        sys.platform == "linux"
        and (pause := getattr(ctypes.CDLL(None), "omp_pause_resource_all", None)) is not None
    ):
        pause(_HARD)


def _clock() -> tuple[float, float, float]:
    """Return seconds: the clock, the CPU time of this process, and that of all processes."""
    own, total = psutil.Process().cpu_times(), psutil.cpu_times()
    idle = total.idle + getattr(total, "iowait", 0.0)
    # The user and nice times already include the guest times.
    guest = getattr(total, "guest", 0.0) + getattr(total, "guest_nice", 0.0)
    return time.monotonic(), own.user + own.system, sum(total) - idle - guest


def _cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


STARTED = _clock()
"""Times at the import of this module; long enough ago once a model is loaded."""
