"""Ask the run for what the alarms need besides a step's rollouts.

These are verdicts on canaries, audits, and log-probabilities of reference answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grpo_alarms.canaries import (
    FEW,
    JudgedCanary,
    Script,
    judged_canaries,
    make_canaries,
    paid_for_right,
)
from grpo_alarms.seen import Seen
from grpo_core import Group, Task
from grpo_core.protocol.events import RunServices, TrainedEnvironment


class Asking:
    """Ask verifiers and policy of a run.

    Args:
        services: has both.
        tasks: the most tasks that a canary is tried on, and whose references are measured.
    """

    def __init__(self, services: RunServices, *, tasks: int) -> None:
        self._services, self._tasks = services, tasks
        self._references: dict[str, list[tuple[Task[Any], str]]] = {}
        """Held-out tasks with their reference answers, by environment, once they were asked."""

    async def references(self, seen: Seen) -> Sequence[Script | None]:
        """Return the reference answers of the first tasks of a step."""
        return await self._services.references(seen.tasks[: self._tasks])

    async def canaries(
        self,
        environment: TrainedEnvironment,
        seen: Seen,
        references: Sequence[Script | None],
        *,
        turn: int,
    ) -> list[JudgedCanary]:
        """Return how the canaries of a step are judged; none where texts cannot be tried alone.

        Such are attempts by agents, episodes and dialogues, and verdicts that depend on earlier
        ones.

        Args:
            environment: the environment.
            seen: its attempts in the step.
            references: the reference answers of its first tasks.
            turn: number of the asking.
        """
        if not environment.is_one_text or not environment.is_one_by_one:
            return []
        tasks = seen.tasks[: self._tasks]
        cheats = await self._services.cheats(tasks[:FEW])
        canaries = make_canaries(
            environment, seen, references, cheats, tasks=self._tasks, turn=turn
        )
        known = _texts(tasks, references)
        attempts = [*known, *((canary.task, canary.text) for canary in canaries)]
        verdicts = await self._services.verify(attempts)
        best, floor = paid_for_right(seen, verdicts[: len(known)]), environment.floor
        if best <= floor:
            return []
        return judged_canaries(canaries, verdicts[len(known) :], best=best, floor=floor)

    async def audited(
        self, environment: TrainedEnvironment, groups: Sequence[Group[Any]]
    ) -> Sequence[Group[Any]]:
        """Return the groups with the audits of their attempts; none if there is no audit."""
        return await self._services.audit(groups) if environment.has_audit else []

    async def reference_logprobs(self, environment: TrainedEnvironment) -> dict[str, float]:
        """Return the mean log-prob per token of the references of fixed held-out tasks, by task.

        Only answers of one turn can be measured, and only for policies that continue a text.
        """
        if not environment.is_one_text:
            return {}
        name = environment.name
        if name not in self._references:
            tasks = await self._services.tasks(name, self._tasks)
            answers = await self._services.references(tasks)
            self._references[name] = _texts(tasks, answers)
        known = self._references[name]
        means = await self._services.logprobs(known)
        return {
            str(task.key): mean
            for (task, _), mean in zip(known, means, strict=True)
            if mean is not None
        }


def _texts(
    tasks: Sequence[Task[Any]], answers: Sequence[Script | None]
) -> list[tuple[Task[Any], str]]:
    """Return the tasks whose answer is one text, with their answers."""
    return [
        (task, answer)
        for task, answer in zip(tasks, answers, strict=True)
        if isinstance(answer, str)
    ]
