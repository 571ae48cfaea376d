"""Ask for the verdict of each rollout as soon as it has ended.

Workers, sandboxes and judges then work while other rollouts are generated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self

from grpo_core.protocol.types import Rollout, Task, Verdict
from grpo_core.train.ranks import Ranks
from grpo_core.verify.sources import Sources


class Judging:
    """Collects verdicts of rollouts that the processes share; use it as `async with` around them.

    Args:
        attempts: rollouts per task (G).
        overlap: begin at once where a verdict depends on nothing but its rollout; else all verdicts
            wait for the end of the rollouts.
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
        self._own_rollouts = ranks.share(
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
        """Cancel the verdicts still in progress if the rollouts or a verdict failed."""
        for judged in self._begun.values():
            judged.cancel()
        await asyncio.gather(*self._begun.values(), return_exceptions=True)

    def begin(self, place: int, rollout: Rollout) -> None:
        """Start to judge a rollout that ended; `place` is its place in this process's share."""
        task, early = self._own_rollouts[place]
        if early:
            self._begun[place] = asyncio.create_task(self._sources.verify([task], [[rollout]]))

    async def verdicts(self, rollouts_PG: Sequence[Sequence[Rollout]]) -> list[list[Verdict]]:
        """Return a verdict for each rollout (P, G), in every process."""
        early_PG, late_PG = await self._early_verdicts(), await self._late_verdicts(rollouts_PG)
        return [next(early_PG if early else late_PG) for early in self._early_P]

    async def _early_verdicts(self) -> Iterator[list[Verdict]]:
        """Gather the verdicts that were begun during the rollouts, by task."""
        if not any(self._early_P):
            return iter(())
        verdicts_of = dict(
            zip(self._begun, await asyncio.gather(*self._begun.values()), strict=True)
        )
        rows = self._ranks.gather(
            [
                verdicts_of[place][0] if place in verdicts_of else []
                for place in range(len(self._own_rollouts))
            ]
        )
        groups = [
            [verdict for row in rows[start : start + self._attempts] for verdict in row]
            for start in range(0, len(rows), self._attempts)
        ]
        return iter([group for group, early in zip(groups, self._early_P, strict=True) if early])

    async def _late_verdicts(
        self, rollouts_PG: Sequence[Sequence[Rollout]]
    ) -> Iterator[list[Verdict]]:
        """Judge the remaining groups; each process judges whole groups."""
        waiting = [place for place, early in enumerate(self._early_P) if not early]
        if not waiting:
            return iter(())
        own_places = self._ranks.share(waiting)
        verdicts_PG = await self._sources.verify(
            [self._tasks_P[place] for place in own_places],
            [rollouts_PG[place] for place in own_places],
        )
        return iter(self._ranks.gather(verdicts_PG))
