"""Several processes on one run: each makes its share of the attempts, verdicts and gradients, and all know everything before the update.

Started by `accelerate launch` or `torchrun`, which set RANK and WORLD_SIZE. What is drawn depends on its place in the run alone, and every
process computes advantages and denominators from all verdicts, so their number changes nothing but the time.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from grpo_core.protocol.errors import RunStoppedError

T = TypeVar("T")
_POLL_SECONDS = 0.05


class Ranks:
    """This process among the others. Alone, every method gives back what it got.

    on_cpu: whether the model is on the CPU, even where an accelerator is. meeting_seconds: how long the first at a meeting waits for the
    last. It is no collective's time-out: those may be short, since nobody enters one before all have arrived.
    """

    def __init__(self, *, meeting_seconds: float, on_cpu: bool = False) -> None:
        if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
            from accelerate import PartialState

            PartialState(cpu=on_cpu)
        together = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if together else 0
        self.size = dist.get_world_size() if together else 1
        self._seconds = meeting_seconds
        self._met = 0

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes."""
        return self.rank == 0

    def share(self, items: Sequence[T]) -> list[T]:
        """This process's part of `items`, which are the same for all: every size-th, so that parts are alike."""
        return list(items[self.rank :: self.size])

    def gathered(self, mine: Sequence[T]) -> list[T]:
        """All parts, in the order that `share` took them from. Raises RunStoppedError if a process does not arrive."""
        if self.size == 1:
            return list(mine)
        self.meet()
        parts: list[list[T]] = [[] for _ in range(self.size)]
        dist.all_gather_object(parts, list(mine))
        whole = sum(map(len, parts))
        return [parts[place % self.size][place // self.size] for place in range(whole)]

    def any(self, flag: bool) -> bool:
        """Whether it is so in any process."""
        return any(self.everywhere(flag))

    def everywhere(self, value: T) -> list[T]:
        """What each process says."""
        return self.gathered([value])

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Sum each tensor over the processes, in place."""
        if self.size > 1 and tensors:
            flat = torch.cat([tensor.reshape(-1).to(torch.float64) for tensor in tensors])
            dist.all_reduce(flat)
            parts = torch.split(flat, [tensor.numel() for tensor in tensors])
            for tensor, part in zip(tensors, parts, strict=True):
                tensor.copy_(part.reshape(tensor.shape))

    def meet(self) -> None:
        """Wait for all processes, without a collective."""
        for _ in self._until_all_are_here():
            time.sleep(_POLL_SECONDS)

    async def arrive(self) -> None:
        """`meet` while the event loop goes on, so that what this process began, and its deadlines, do not wait for the others."""
        for _ in self._until_all_are_here():
            await asyncio.sleep(_POLL_SECONDS)

    def _until_all_are_here(self) -> Iterator[None]:
        if self.size == 1:
            return
        store = dist.distributed_c10d._get_default_store()
        self._met += 1
        name, deadline = f"grpo meeting {self._met}", time.monotonic() + self._seconds
        store.set(f"{name} {self.rank}", "here")
        for other in range(self.size):
            while not store.check([f"{name} {other}"]):
                if time.monotonic() > deadline:
                    raise RunStoppedError(
                        f"process {other} of {self.size} did not arrive within {self._seconds:g} s; look at its output, then use --resume"
                    )
                yield
        if self._met > 1:  # everybody has left the meeting before
            store.delete_key(f"grpo meeting {self._met - 1} {self.rank}")
