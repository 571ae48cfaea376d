"""Ask for the verdict of each rollout as soon as it has ended.

Workers, sandboxes and judges then work while other rollouts are generated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from grpo_core.engine.ranks import Ranks
from grpo_core.protocol.types import Group, Task, Verdict
from grpo_core.train.rollout.agents import AgentAttempt
from grpo_core.train.rollout.attempt import Attempt
from grpo_core.verify.sources import Sources


class Judging:
    """Judges attempts that the processes share; close it when they are judged.

    Args:
        overlap: begin at once where a verdict depends on nothing but its rollout; else the verdict
            waits for the end of the rollouts. One of an episode never waits.
    """

    def __init__(self, sources: Sources, ranks: Ranks, *, overlap: bool) -> None:
        self._sources, self._ranks, self._overlap = sources, ranks, overlap
        self._begun: dict[int, asyncio.Task[Verdict]] = {}
        """The verdicts in progress, by the attempt's place in this process's share."""
        self._unclosed: dict[int, Attempt | AgentAttempt] = {}
        """The attempts that they are of, until these are closed."""

    async def aclose(self) -> None:
        """Cancel the verdicts still in progress if the rollouts or a verdict failed."""
        for judged in self._begun.values():
            judged.cancel()
        await asyncio.gather(*self._begun.values(), return_exceptions=True)
        await asyncio.gather(*(attempt.close() for attempt in self._unclosed.values()))

    def begin(self, place: int, attempt: Attempt | AgentAttempt) -> bool:
        """Start to judge an attempt that has ended, which is closed afterwards.

        Args:
            place: its place in this process's share.
            attempt: the attempt.

        Returns:
            False if the verdict has to wait for the end of the rollouts.
        """
        if not self._is_early(attempt.task):
            return False
        self._unclosed[place] = attempt
        self._begun[place] = asyncio.create_task(self._judged(place, attempt))
        return True

    async def groups(
        self, tasks_P: Sequence[Task[Any]], attempts: Sequence[Attempt | AgentAttempt]
    ) -> list[Group[Any]]:
        """Return a judged group for each task, in every process.

        Groups whose verdicts were not begun during the rollouts are judged as a whole, each by one
        process.

        Args:
            tasks_P: the tasks.
            attempts: this process's share of the attempts at them, which have ended.
        """
        await asyncio.gather(*self._begun.values())
        own_verdicts = {place: judged.result() for place, judged in self._begun.items()}
        rollouts = self._ranks.gather([attempt.rollout() for attempt in attempts])
        verdicts = self._ranks.gather([own_verdicts.get(i) for i in range(len(attempts))])
        count = len(rollouts) // max(1, len(tasks_P))
        groups = []
        for i, task in enumerate(tasks_P):
            places = slice(i * count, (i + 1) * count)
            begun = [verdict for verdict in verdicts[places] if verdict is not None]
            groups.append(Group(task, rollouts[places], begun))
        late = [group for group in groups if not self._is_early(group.task)]
        if not late:
            return groups
        own = self._ranks.share(late)
        verdicts_PG = iter(
            self._ranks.gather(
                await self._sources.verify(
                    [group.task for group in own], [group.rollouts for group in own]
                )
            )
        )
        return [
            group if self._is_early(group.task) else replace(group, verdicts=next(verdicts_PG))
            for group in groups
        ]

    def _is_early(self, task: Task[Any]) -> bool:
        """Return whether attempts at a task are judged as soon as they have ended."""
        verifier = self._sources[task.key.env].verifier
        return verifier.has_episodes or (self._overlap and verifier.one_by_one)

    async def _judged(self, place: int, attempt: Attempt | AgentAttempt) -> Verdict:
        """Return the verdict of an attempt that has ended, and close it.

        An episode is asked itself, while it lives.
        """
        verifier = self._sources[attempt.task.key.env].verifier
        try:
            if attempt.conversation is not None:
                return await attempt.conversation.verdict(attempt.rollout())
            return await verifier.judge(attempt.task, attempt.rollout())
        finally:
            await attempt.close()
            del self._unclosed[place]
