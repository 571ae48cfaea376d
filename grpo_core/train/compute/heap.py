"""The heap of glibc, which on a CPU holds the tensors: shared by threads, and emptied where free memory would otherwise only grow."""

from __future__ import annotations

import ctypes
import os
import platform

import torch

from grpo_core.train.models.device import used_memory

M_MMAP_THRESHOLD, M_ARENA_MAX = -3, -8  # malloc.h
ARENAS = 3
"""Of the heap. With one, threads wait for each other in attention's products, which cost 10 % of an update, on a busy machine 20 %."""
PRIMITIVES = "128"
"""Compiled operations that oneDNN keeps, one for each shape, most of 0.3 to 0.5 MB. Its own limit of 1024 is reached after many steps."""
GROWTH = 1.15
"""Emptied after every step it would cost a quarter of a long one's time, since new pages are slow; so only when it has grown so much."""


def share_heap(device: torch.device) -> None:
    """Before a model computes on a CPU: few heaps for all threads, where what one of them freed another can use (glibc gives each its own,
    8 for each core), and a bound to what oneDNN keeps, so that memory does not grow from step to step. Environment variables of the user
    hold."""
    if device.type == "cpu":
        os.environ.setdefault(
            "ONEDNN_PRIMITIVE_CACHE_CAPACITY", PRIMITIVES
        )  # read at the first operation
        if "MALLOC_ARENA_MAX" not in os.environ and "arena_max" not in os.environ.get(
            "GLIBC_TUNABLES", ""
        ):
            _mallopt(M_ARENA_MAX, ARENAS)


def give_back_freed_memory() -> None:
    """From here on tensors that are freed on a CPU go back to the system, where the heap would keep those of up to 32 MB: with layers that
    are recomputed that was more than half of the memory. New ones cost more time, since they come as empty pages."""
    _mallopt(M_MMAP_THRESHOLD, 2**20)


class Heap:
    """Gives free memory of the heap back, also the holes between what is used, which attempts of other lengths do not fit.

    expected: bytes that the run may have before it is worth the time.
    """

    def __init__(self, device: torch.device, expected: float) -> None:
        self._device = device
        self._expected = expected
        self._limit: float | None = None

    def empty(self) -> None:
        """For a change of work that needs pieces of other sizes, which would otherwise come on top."""
        if self._device.type == "cpu" and platform.libc_ver()[0] == "glibc":
            ctypes.CDLL(None).malloc_trim(0)
        self._limit = None  # what the work needs is seen after its next step

    def step_ended(self) -> None:
        """Empties it if the process has more than was expected, and than the first step since the last time left behind."""
        used = used_memory(self._device)
        if self._limit is None:
            self._limit = max(self._expected, GROWTH * used)
        elif used > self._limit:
            self.empty()


def _mallopt(option: int, value: int) -> None:
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).mallopt(option, value)
