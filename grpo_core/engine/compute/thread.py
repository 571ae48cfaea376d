"""Compute on a model's weights in a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from typing import TypeVar

import torch

from grpo_core.engine.compute.openmp import Helpers

T = TypeVar("T")


class ComputeThread:
    """Run computations one after another in one thread.

    The event loop stays free for verdicts, timeouts and Ctrl-C, and sampling never overlaps with an
    update of the same weights.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grpo-compute")
        self._openmp_helpers = Helpers()

    def submit(self, compute: Callable[[], T]) -> Future[T]:
        """Queue a computation; return its result as a future."""
        self._openmp_helpers.hand_over()
        return self._thread.submit(self._run, compute)

    async def run(self, compute: Callable[[], T]) -> T:
        """Run a computation and return its result.

        If the caller is cancelled, the computation first runs to its end: nobody else may use
        weights that are being changed.
        """
        future = self.submit(compute)
        try:
            return await asyncio.wrap_future(future)
        finally:
            wait([future])

    def _run(self, compute: Callable[[], T]) -> T:
        try:
            # CUDA has a current device per thread.
            with torch.cuda.device(self._device) if self._device.type == "cuda" else nullcontext():
                return compute()
        finally:
            self._openmp_helpers.hand_back()
