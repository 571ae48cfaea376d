"""Tune the heap of glibc, which holds the tensors on a CPU.

It is shared by threads, and trimmed where free memory would otherwise only grow.
"""

from __future__ import annotations

import ctypes
import os
import platform

import torch

from grpo_core.engine.models.device import used_memory

M_MMAP_THRESHOLD, M_ARENA_MAX = -3, -8  # malloc.h
ARENAS = 3
"""Number of heaps. With a single one, threads wait for each other in attention's products, which
cost 10 % of an update, and 20 % on a busy machine."""
PRIMITIVES = "128"
"""Number of compiled operations that oneDNN caches, one for each shape, most of 0.3 to 0.5 MB. Its
own limit of 1024 is reached after many steps."""
GROWTH = 1.15
"""Factor by which memory has to grow before the heap is trimmed. Trimming after every step would
cost a quarter of a long step's time, since new pages are slow."""


def share_heap(device: torch.device) -> None:
    """Limit the number of heaps and oneDNN's cache, so that memory does not grow from step to step.

    To be called before a model computes on a CPU. With few heaps for all threads, memory that one
    thread freed can be used by another (glibc allows 8 heaps for each core). Environment variables
    that the user has set take precedence.
    """
    if device.type == "cpu":
        # oneDNN reads it at its first operation.
        os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", PRIMITIVES)
        if "MALLOC_ARENA_MAX" not in os.environ and "arena_max" not in os.environ.get(
            "GLIBC_TUNABLES", ""
        ):
            _mallopt(M_ARENA_MAX, ARENAS)


def give_back_freed_memory() -> None:
    """Return the memory of freed tensors to the system from now on.

    The heap would keep those of up to 32 MB: with recomputed layers that was more than half of the
    memory. New tensors take more time, since they come as empty pages.
    """
    _mallopt(M_MMAP_THRESHOLD, 2**20)


class Heap:
    """Trim the heap: return its free memory to the system.

    That includes the gaps between used pieces, which completions of other lengths do not fit.

    Args:
        device: where the model computes; nothing happens unless it is a CPU.
        expected: bytes that the run may use before trimming is worth the time.
    """

    def __init__(self, device: torch.device, expected: float) -> None:
        self._device = device
        self._expected = expected
        self._limit: float | None = None

    def empty(self) -> None:
        """Trim the heap now.

        To be called before work that needs pieces of other sizes, which would otherwise come on
        top.
        """
        if self._device.type == "cpu" and platform.libc_ver()[0] == "glibc":
            ctypes.CDLL(None).malloc_trim(0)
        self._limit = None  # set again after the next step, which shows what the work needs

    def step_ended(self) -> None:
        """Trim the heap if the process uses too much memory.

        That is more than expected, and more than after the first step since the last trim.
        """
        used = used_memory(self._device)
        if self._limit is None:
            self._limit = max(self._expected, GROWTH * used)
        elif used > self._limit:
            self.empty()


def _mallopt(option: int, value: int) -> None:
    """Set an option of glibc's malloc; do nothing with another C library."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).mallopt(option, value)
