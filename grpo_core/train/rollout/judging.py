"""Ask for the verdict of each rollout as soon as it has ended.

Workers, sandboxes and judges then work while other rollouts are generated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

from grpo_core.protocol.types import Rollout, Task, Verdict
from grpo_core.train.ranks import Ranks
from grpo_core.verify.conversation import Conversation
from grpo_core.verify.sources import Sources


class Judging:
    """Collects verdicts of rollouts that the processes share; close it when they are judged.

    Args:
        attempts: rollouts per task (G).
        overlap: begin at once where a verdict depends on nothing but its rollout; else the verdict
            waits for the end of the rollouts. One of an episode never waits.
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
        self._early_P = [
            sources[task.key.env].verifier.has_episodes
            or (overlap and sources[task.key.env].verifier.one_by_one)
            for task in tasks_P
        ]
        self._early = ranks.share([early for early in self._early_P for _ in range(attempts)])
        """Whether a rollout is judged as soon as it has ended, by its place."""
        self._begun: dict[int, asyncio.Task[Verdict]] = {}
        self._conversations: list[Conversation] = []

    async def aclose(self) -> None:
        """Cancel the verdicts still in progress if the rollouts or a verdict failed."""
        for judged in self._begun.values():
            judged.cancel()
        await asyncio.gather(*self._begun.values(), return_exceptions=True)
        await asyncio.gather(*(conversation.close() for conversation in self._conversations))

    def begin(self, place: int, rollout: Rollout, conversation: Conversation) -> None:
        """Start to judge a rollout that ended, and close its conversation afterwards.

        Args:
            place: its place in this process's share.
            rollout: the rollout.
            conversation: the environment's part in it.
        """
        if self._early[place]:
            self._conversations.append(conversation)
            self._begun[place] = asyncio.create_task(_judged(rollout, conversation))

    async def verdicts(self, rollouts_PG: Sequence[Sequence[Rollout]]) -> list[list[Verdict]]:
        """Return a verdict for each rollout (P, G), in every process.

        Groups whose verdicts were not begun during the rollouts are judged as a whole, each by one
        process.
        """
        rows: list[list[Verdict]] = []
        if any(self._early_P):
            await asyncio.gather(*self._begun.values())
            rows = self._ranks.gather(
                [
                    [self._begun[place].result()] if place in self._begun else []
                    for place in range(len(self._early))
                ]
            )
        late_PG: Iterator[list[Verdict]] = iter(())
        if not all(self._early_P):
            own_places = self._ranks.share(
                [place for place, early in enumerate(self._early_P) if not early]
            )
            verdicts_PG = await self._sources.verify(
                [self._tasks_P[place] for place in own_places],
                [rollouts_PG[place] for place in own_places],
            )
            late_PG = iter(self._ranks.gather(verdicts_PG))
        return [
            [
                verdict
                for row in rows[place * self._attempts : (place + 1) * self._attempts]
                for verdict in row
            ]
            if early
            else next(late_PG)
            for place, early in enumerate(self._early_P)
        ]


async def _judged(rollout: Rollout, conversation: Conversation) -> Verdict:
    """Return the verdict of a rollout, and close its conversation."""
    try:
        return await conversation.verdict(rollout)
    finally:
        await conversation.close()
