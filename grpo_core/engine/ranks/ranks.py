"""Coordinate several processes on one run.

Each process makes its share of the completions, verdicts and gradients, and all of them hold all
verdicts before the update. They are started by `grpo run --processes N`, `torchrun` or
`accelerate launch`, which set RANK and WORLD_SIZE. What is sampled depends on its place in the run
alone, and every process computes advantages and denominators from all verdicts, so the number of
processes changes only the time.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from grpo_core.engine.ranks.exchange import exchange
from grpo_core.engine.ranks.joining import join
from grpo_core.engine.ranks.messages import from_json, to_json
from grpo_core.protocol.errors import RunStoppedError

T = TypeVar("T")
BUCKET_BYTES = 64 * 2**20
"""Most bytes of the sums that `Ranks.add` makes at a time."""


class Ranks:
    """Represent this process among the others of the run.

    Without others, every method returns its argument.

    Args:
        meeting_seconds: how long the first process at a barrier waits for the last. It is not the
            timeout of a collective: that may be short, since no process enters a collective before
            all have arrived.
        on_cpu: True if the model is on the CPU, even where an accelerator is present.
    """

    def __init__(self, *, meeting_seconds: float, on_cpu: bool = False) -> None:
        self._group = join(seconds=meeting_seconds, on_cpu=on_cpu)
        self.rank = self._group.rank if self._group else 0
        self.size = self._group.size if self._group else 1
        self.first = self.rank == 0
        """Whether this process writes files and output."""
        self._seconds = meeting_seconds

    def share(self, items: Sequence[T]) -> list[T]:
        """Return this process's part of `items`, which have to be the same in all processes.

        It is every size-th item, so that the parts are alike.
        """
        return list(items[self.rank :: self.size])

    def gather(self, mine: Sequence[T]) -> list[T]:
        """Return the parts of all processes, in the order that `share` took them from.

        They travel as JSON, so they hold what `messages` can write.

        Raises:
            RunStoppedError: a process did not arrive in time, or sent something else.
        """
        if self.size == 1:
            return list(mine)
        message = to_json(list(mine))  # before the others wait in a collective
        self.meet()
        parts: list[list[T]] = []
        for rank, text in enumerate(exchange(message)):
            try:
                parts.append(from_json(text))
            except ValueError as error:
                raise RunStoppedError(f"process {rank} sent what cannot be read: {error}") from None
        total = sum(map(len, parts))
        return [parts[place % self.size][place // self.size] for place in range(total)]

    def gather_values(self, value: T) -> list[T]:
        """Return the value of each process, in the order of their ranks."""
        return self.gather([value])

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Sum each tensor over the processes, in place and in float64.

        It needs `BUCKET_BYTES` of memory, however large the tensors are.
        """
        if self.size == 1:
            return
        for bucket in _buckets(tensors, BUCKET_BYTES // torch.float64.itemsize):
            sizes = [part.numel() for part in bucket]
            sums = torch.empty(sum(sizes), dtype=torch.float64, device=bucket[0].device)
            pairs = list(zip(bucket, torch.split(sums, sizes), strict=True))
            for part, total in pairs:
                total.view(part.shape).copy_(part)
            dist.all_reduce(sums)
            for part, total in pairs:
                part.copy_(total.view(part.shape))

    def meet(self) -> None:
        """Wait for all processes, without a collective.

        Raises:
            RunStoppedError: a process did not arrive within `meeting_seconds`.
        """
        for pause in self._wait_for_all():
            time.sleep(pause)

    async def arrive(self) -> None:
        """Wait for all processes as `meet` does, but without blocking the event loop.

        Work that this process has started, and its timeouts, do not have to wait for the others.
        """
        for pause in self._wait_for_all():
            await asyncio.sleep(pause)

    def _wait_for_all(self) -> Iterator[float]:
        return iter(()) if self._group is None else self._group.wait_for_all(self._seconds)


def _buckets(tensors: Sequence[Tensor], most: int) -> Iterator[list[Tensor]]:
    """Yield the parts of all tensors in their order, in lists of at most `most` numbers."""
    bucket: list[Tensor] = []
    count = 0
    for part in (part for tensor in tensors for part in _parts(tensor, most)):
        if count + part.numel() > most:
            yield bucket
            bucket, count = [], 0
        bucket.append(part)
        count += part.numel()
    if bucket:
        yield bucket


def _parts(tensor: Tensor, most: int) -> Iterator[Tensor]:
    """Yield views of a tensor, of at most `most` numbers each, that make it up."""
    if tensor.numel() <= most:
        yield tensor
        return
    axis = max(range(tensor.ndim), key=lambda axis: tensor.shape[axis])
    pieces = math.ceil(tensor.numel() / most)
    for part in torch.split(tensor, math.ceil(tensor.shape[axis] / pieces), dim=axis):
        yield from _parts(part, most)
