"""Make the rollouts of later steps while earlier ones are trained: the asynchronous pipeline.

The rollouts of a step are one item: whole groups, of which each is sampled by one version of the
weights. Items are begun in the order of the steps, and an item is begun only when it can be used in
time (admission). So the order of the prompts is that of a synchronous run, nothing is too old when
its step comes, and nothing is dropped for being slow.

The version of the weights is the number of the step after which they are these. Step s trains the
weights of version s - 1, so rollouts by version v have the staleness s - 1 - v.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")


class Turn:
    """Tells the queue how far the rollouts of a step have come.

    Args:
        step: their step.
        start: number of the first prompt.
        oldest: the oldest version of the weights that may sample them.
        since: when they began to wait for admission, by `time.perf_counter`.
    """

    def __init__(self, step: int, *, start: int, oldest: int, since: float) -> None:
        self.step, self.start, self.oldest, self.since = step, start, oldest, since
        self._has_weights = asyncio.Event()
        self._next_start: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def take_weights(self) -> None:
        """Note that the sampler has the weights for these rollouts."""
        self._has_weights.set()

    def pass_on(self, next_start: int) -> None:
        """Start the next step's rollouts at the prompt number `next_start`."""
        if not self._next_start.done():
            self._next_start.set_result(next_start)

    def end(self) -> None:
        """End all waits for this turn; no later rollouts begin if `pass_on` was not called."""
        self._has_weights.set()
        if not self._next_start.done():
            self._next_start.cancel()

    async def weights_taken(self) -> None:
        """Wait until the sampler has the weights, or needs none any more."""
        await self._has_weights.wait()

    async def next_start(self) -> int | None:
        """Wait until the next rollouts may begin; return their first prompt, or None for never."""
        await asyncio.wait({self._next_start})
        return None if self._next_start.cancelled() else self._next_start.result()


class RolloutQueue(Generic[Item]):
    """Hold the rollouts of the next steps, those in progress among them; close it at the end.

    Args:
        roll_out: makes the rollouts of a step. It calls `Turn.take_weights` when the sampler has
            its weights, and `Turn.pass_on` when the next step's rollouts may be sampled.
        max_staleness: the bound; at least 1.
        total: number of the last step.
    """

    def __init__(
        self, roll_out: Callable[[Turn], Awaitable[Item]], *, max_staleness: int, total: int
    ) -> None:
        self._roll_out = roll_out
        self._max_staleness, self._total = max_staleness, total
        self._version = 0
        self._items: defaultdict[int, asyncio.Future[Item]] = defaultdict(
            lambda: asyncio.get_running_loop().create_future()
        )
        """What is or will be ready, by step."""
        self._waiting: tuple[Turn, asyncio.Future[None]] | None = None
        """What waits for admission, and is told of it."""
        self._newest: Turn | None = None
        """The turn that was admitted last."""
        self._has_begun = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def next(self, step: int, *, start: int) -> Item:
        """Return the rollouts of `step`, as soon as they are complete.

        Args:
            start: number of its first prompt; only the first call of all looks at it.

        Raises:
            Exception: whatever their making raised.
        """
        if not self._has_begun:
            self._has_begun, self._version = True, step - 1
            self._spawn(self._begin_in_order(step, start))
        item = await self._items[step]
        del self._items[step]
        return item

    def trained(self, version: int) -> None:
        """Admit what may be sampled now that the policy's weights have the number `version`."""
        self._version = version
        self._admit()

    async def weights_taken(self) -> None:
        """Wait until the sampler has the weights for the rollouts that were admitted.

        Weights that are about to be changed are given to it before. Otherwise it would have to wait
        for the end of the update.
        """
        if self._newest is not None:
            await self._newest.weights_taken()

    async def close(self) -> None:
        """Cancel the rollouts in progress and drop those that nobody asked for."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for item in self._items.values():
            if not item.cancel() and not item.cancelled():
                item.exception()  # so that asyncio does not report an error that no step met
        self._items.clear()
        self._waiting = self._newest = None

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _begin_in_order(self, step: int, start: int) -> None:
        """Begin the rollouts of each step, the first being `step`, once they are admitted."""
        next_start: int | None = start
        while step <= self._total and next_start is not None:
            turn = Turn(
                step,
                start=next_start,
                oldest=step - 1 - self._max_staleness,
                since=time.perf_counter(),
            )
            admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting = turn, admitted
            self._admit()
            await admitted
            self._spawn(self._make(turn))
            next_start = await turn.next_start()
            step += 1

    def _admit(self) -> None:
        """Admit the rollouts that wait, if they can be used in time.

        A trainer that goes on at once already waits for their weights.
        """
        if self._waiting is not None and self._waiting[0].oldest <= self._version:
            self._newest, admitted = self._waiting
            self._waiting = None
            admitted.set_result(None)

    async def _make(self, turn: Turn) -> None:
        """Make the rollouts of a step, and let their failure be that of the step."""
        item = self._items[turn.step]
        try:
            item.set_result(await self._roll_out(turn))
        except Exception as error:  # noqa: BLE001 - the step raises it
            item.set_exception(error)
        finally:
            turn.end()
