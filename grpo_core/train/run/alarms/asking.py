"""Ask for what the alarms need besides a step's rollouts.

These are verdicts on canaries, audits, and log-probabilities of reference answers. Nothing of it is
trained on, and the global random generators are left as they were.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch

from grpo_core.protocol.environment import Environment
from grpo_core.protocol.errors import GrpoError
from grpo_core.protocol.types import Group, Rollout, Script, Segment, Task, Verdict
from grpo_core.train.actor import Actor
from grpo_core.train.compute.batch import Row
from grpo_core.train.run.alarms.canaries import (
    FEW,
    Asked,
    judged_canaries,
    make_canaries,
    paid_for_right,
)
from grpo_core.train.run.alarms.seen import Seen
from grpo_core.train.run.checkpoint import RandomStates
from grpo_core.verify.held_out import eval_keys
from grpo_core.verify.sources import Source

T = TypeVar("T")


class Asking:
    """Ask verifiers and policy of a run.

    Args:
        actor: has both.
        tasks: the most tasks that a canary is tried on, and whose references are measured.
    """

    def __init__(self, actor: Actor, *, tasks: int) -> None:
        self._actor, self._tasks = actor, tasks
        self._references: dict[str, dict[str, Row]] = {}
        """The rows of the reference answers, by environment and task, once they were made."""

    async def references(self, seen: Seen) -> list[Script | None]:
        """Return the reference answers of the first tasks of a step."""
        tasks = seen.tasks[: self._tasks]
        return list(await self._in_one(lambda: self._actor.sources.references(tasks)))

    async def _in_one(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Return what the first process is answered, so that all processes do the same after it.

        Raises:
            GrpoError: the environment fails, in all processes.
        """
        answer: tuple[T | None, str] = (None, "")
        if self._actor.ranks.first:
            try:
                with kept_random_states():
                    answer = (await ask(), "")
            except GrpoError as error:
                answer = (None, str(error))
        result, failure = self._actor.ranks.gather_values(answer)[0]
        if failure:
            raise GrpoError(failure)
        return cast("T", result)

    async def canaries(
        self, source: Source, seen: Seen, references: Sequence[Script | None], *, turn: int
    ) -> list[Asked]:
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
            cheats = await self._in_one(lambda: asyncio.gather(*asked))
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
        verdicts = await self._verdicts(attempts)
        best = paid_for_right(seen, verdicts[: len(known)])
        if best <= env.floor:
            return []
        return judged_canaries(canaries, verdicts[len(known) :], best=best, floor=env.floor)

    async def _verdicts(self, attempts: Sequence[tuple[Task[Any], str]]) -> list[Verdict]:
        """Return the verdicts on answers; each process judges its share."""
        ranks = self._actor.ranks
        own = ranks.share(attempts)
        with kept_random_states():
            verdicts = await self._actor.sources.verify(
                [task for task, _ in own], [[Rollout.of(text)] for _, text in own]
            )
        return ranks.gather([verdict for (verdict,) in verdicts])

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
        policy, config = self._actor.policy, self._actor.config
        if source.name not in self._references:
            self._references[source.name] = await self._reference_rows(source)
        rows = self._references[source.name]
        if not rows:
            return {}

        def compute() -> dict[int, float]:
            means: dict[int, float] = {}
            with torch.no_grad():
                for micro in policy.micro_batches(
                    list(rows.values()),
                    max_tokens=config.trainer.micro_batch_tokens
                    or policy.tuning.micro_batch_tokens,
                    dtype=torch.float32,
                ):
                    logprob_BT, _ = policy.logprobs(micro, temperature=1.0)
                    sums_B = (logprob_BT * micro.trainable_BT).sum(dim=1)
                    for row, value in zip(micro.rows, sums_B.tolist(), strict=True):
                        means[id(row)] = value / len(row.segment.token_ids)
            return means

        means = await policy.thread.run(compute)
        return {task: means[id(row)] for task, row in rows.items()}

    async def _reference_rows(self, source: Source) -> dict[str, Row]:
        """Return the rows of the reference answers of held-out tasks, by task."""
        policy, sources = self._actor.policy, self._actor.sources
        if policy.fills or source.env.max_turns > 1 or _needs_more_than_text(source):
            return {}

        async def ask() -> list[tuple[str, tuple[int, ...], tuple[int, ...]]]:
            keys, _ = await self._actor.askable.split(sources, eval_keys(source, self._tasks))
            tasks = await sources.tasks(keys)
            return [
                (
                    str(task.key),
                    policy.encode(task.prompt),
                    policy.encode_answer(task.prompt, answer),
                )
                for task, answer in zip(tasks, await sources.references(tasks), strict=True)
                if isinstance(answer, str)
            ]

        rows = {}
        for task, prompt_ids, answer_ids in await self._in_one(ask):
            length = len(answer_ids)
            if length and len(prompt_ids) + length <= (policy.context or length + len(prompt_ids)):
                segment = Segment(prompt_ids, answer_ids, (0.0,) * length, (1,) * length)
                rows[task] = Row(segment, 0.0, 0.0)
        return rows


def _needs_more_than_text(source: Source) -> bool:
    """Return whether an attempt is more than a text that answers a prompt."""
    return source.verifier.has_agents or source.verifier.has_episodes


@contextmanager
def kept_random_states() -> Iterator[None]:
    """Leave the global random generators, which verifiers in this process may use, as they are."""
    states = RandomStates.now()
    try:
        yield
    finally:
        states.restore()
