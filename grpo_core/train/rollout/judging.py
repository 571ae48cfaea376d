"""Verdicts of attempts, each asked for as soon as its attempt has ended: workers, sandboxes and judges work while others are generated."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self

from grpo_core.protocol.types import Rollout, Task, Verdict
from grpo_core.train.ranks import Ranks
from grpo_core.verify.sources import Sources


class Judging:
    """Of `attempts` at each of `tasks_P`, whose rollouts are shared among the processes; use it as `async with`, around the rollouts.

    overlap: begin at once where a verdict depends on nothing but its attempt; else everything waits for the rollouts' end.
    """

    def __init__(
        self,
        sources: Sources,
        ranks: Ranks,
        tasks_P: Sequence[Task[Any]],
        *,
        attempts: int,
        overlap: bool,
    ) -> None:
        self._sources, self._ranks, self._tasks_P, self._attempts = (
            sources,
            ranks,
            tasks_P,
            attempts,
        )
        self._early_P = [overlap and sources[task.key.env].verifier.one_by_one for task in tasks_P]
        self._mine = ranks.share(
            [
                (task, early)
                for task, early in zip(tasks_P, self._early_P, strict=True)
                for _ in range(attempts)
            ]
        )
        self._begun: dict[int, asyncio.Task[list[list[Verdict]]]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing is left under way where the rollouts or a verdict failed."""
        for judged in self._begun.values():
            judged.cancel()
        await asyncio.gather(*self._begun.values(), return_exceptions=True)

    def ended(self, place: int, rollout: Rollout) -> None:
        """Hear that attempt `place` of this process's share has ended."""
        task, early = self._mine[place]
        if early:
            self._begun[place] = asyncio.create_task(self._sources.verify([task], [[rollout]]))

    async def verdicts(self, rollouts_PG: Sequence[Sequence[Rollout]]) -> list[list[Verdict]]:
        """A verdict for each rollout (P, G), in every process."""
        early_PG, late_PG = await self._early(), await self._late(rollouts_PG)
        return [next(early_PG if early else late_PG) for early in self._early_P]

    async def _early(self) -> Iterator[list[Verdict]]:
        if not any(self._early_P):
            return iter(())
        found = dict(zip(self._begun, await asyncio.gather(*self._begun.values()), strict=True))
        rows = self._ranks.gathered(
            [found[place][0] if place in found else [] for place in range(len(self._mine))]
        )
        groups = [
            [verdict for row in rows[s : s + self._attempts] for verdict in row]
            for s in range(0, len(rows), self._attempts)
        ]
        return iter([group for group, early in zip(groups, self._early_P, strict=True) if early])

    async def _late(self, rollouts_PG: Sequence[Sequence[Rollout]]) -> Iterator[list[Verdict]]:
        """Each process judges whole groups."""
        waiting = [p for p, early in enumerate(self._early_P) if not early]
        if not waiting:
            return iter(())
        mine = self._ranks.share(waiting)
        found = await self._sources.verify(
            [self._tasks_P[p] for p in mine], [rollouts_PG[p] for p in mine]
        )
        return iter(self._ranks.gathered(found))
