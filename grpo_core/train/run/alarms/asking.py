"""Ask for what the alarms need besides a step's rollouts.

These are verdicts on canaries, audits, and log-probabilities of reference answers. Nothing of it is
trained on, and the global random generators are left as they were.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from grpo_core.protocol.environment import Environment
from grpo_core.protocol.types import Group, Script, Task
from grpo_core.train.actor import Actor
from grpo_core.train.run.alarms.canaries import (
    FEW,
    JudgedCanary,
    judged_canaries,
    make_canaries,
    paid_for_right,
)
from grpo_core.train.run.alarms.seen import Seen
from grpo_core.train.run.services import ActorServices, kept_random_states
from grpo_core.verify.sources import Source


class Asking:
    """Ask verifiers and policy of a run.

    Args:
        actor: has both.
        tasks: the most tasks that a canary is tried on, and whose references are measured.
    """

    def __init__(self, actor: Actor, *, tasks: int) -> None:
        self._actor, self._tasks = actor, tasks
        self._services = ActorServices(actor, is_shared=True)
        self._references: dict[str, list[tuple[Task[Any], str]]] = {}
        """Held-out tasks with their reference answers, by environment, once they were asked."""

    async def references(self, seen: Seen) -> list[Script | None]:
        """Return the reference answers of the first tasks of a step."""
        return await self._services.references(seen.tasks[: self._tasks])

    async def canaries(
        self, source: Source, seen: Seen, references: Sequence[Script | None], *, turn: int
    ) -> list[JudgedCanary]:
        """Return how the canaries of a step are judged; none where texts cannot be tried alone.

        Such are attempts by agents, episodes and dialogues, and verdicts that depend on earlier
        ones.

        Args:
            source: the environment.
            seen: its attempts in the step.
            references: the reference answers of its first tasks.
            turn: number of the asking.
        """
        env = source.env
        if env.max_turns > 1 or _needs_more_than_text(source) or not source.verifier.one_by_one:
            return []
        tasks = seen.tasks[: self._tasks]
        cheats: list[list[str | tuple[str, ...]]] = []
        if type(env).cheats is not Environment.cheats:
            # Asked where the tasks' data are, which may be another process.
            asked = [source.verifier.cheats(task) for task in tasks[:FEW]]
            cheats = await self._services.in_one(lambda: asyncio.gather(*asked))
        canaries = make_canaries(
            env,
            seen,
            references,
            cheats,
            tasks=self._tasks,
            turn=turn,
            can_be_ended=not source.verifier.is_in_this_process,
        )
        known = [
            (task, answer)
            for task, answer in zip(tasks, references, strict=True)
            if isinstance(answer, str)
        ]
        attempts = [*known, *((canary.task, canary.text) for canary in canaries)]
        verdicts = await self._services.verify(attempts)
        best = paid_for_right(seen, verdicts[: len(known)])
        if best <= env.floor:
            return []
        return judged_canaries(canaries, verdicts[len(known) :], best=best, floor=env.floor)

    async def audited(self, source: Source, groups: Sequence[Group[Any]]) -> list[Group[Any]]:
        """Return the groups with the audits of their attempts; none if there is no audit."""
        if type(source.env).audit is Environment.audit:
            return []
        with kept_random_states():
            return await self._actor.audited(groups)

    async def reference_logprobs(self, source: Source) -> dict[str, float]:
        """Return the mean log-prob per token of the references of fixed held-out tasks, by task.

        Only answers of one turn can be measured, and only for policies that continue a text.
        """
        if self._actor.policy.fills or source.env.max_turns > 1 or _needs_more_than_text(source):
            return {}
        if source.name not in self._references:
            tasks = await self._services.tasks(source.name, self._tasks)
            answers = await self._services.references(tasks)
            self._references[source.name] = [
                (task, answer)
                for task, answer in zip(tasks, answers, strict=True)
                if isinstance(answer, str)
            ]
        known = self._references[source.name]
        means = await self._services.logprobs(known)
        return {
            str(task.key): mean
            for (task, _), mean in zip(known, means, strict=True)
            if mean is not None
        }


def _needs_more_than_text(source: Source) -> bool:
    """Return whether an attempt is more than a text that answers a prompt."""
    return source.verifier.has_agents or source.verifier.has_episodes
