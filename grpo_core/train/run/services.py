"""Answer what listeners ask: verdicts on texts, and log-probabilities under the present policy.

Nothing of it is trained on or counted, and the global random generators are left as they were.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch

from grpo_core.engine.compute.batch import Row
from grpo_core.protocol.environment import Environment
from grpo_core.protocol.errors import ConfigError, GrpoError
from grpo_core.protocol.events import TrainedEnvironment
from grpo_core.protocol.types import Group, Rollout, Script, Segment, Task, TaskKey, Verdict
from grpo_core.train.actor import Actor
from grpo_core.train.run.checkpoint import RandomStates
from grpo_core.verify.held_out import eval_keys
from grpo_core.verify.sources import Source

T = TypeVar("T")


class ActorServices:
    """Ask verifiers and policy of a run; implements `RunServices`.

    Args:
        actor: has both.
        is_shared: whether every process of the run asks the same at the same time, so that they
            share the work; else only one of them asks.
    """

    def __init__(self, actor: Actor, *, is_shared: bool) -> None:
        self._actor, self._is_shared = actor, is_shared

    async def tasks(self, environment: str, count: int) -> list[Task[Any]]:
        """Return at most `count` held-out tasks of an environment."""
        source = self._source(environment)

        async def ask() -> list[TaskKey]:
            keys, _ = await self._actor.askable.split(self._actor.sources, eval_keys(source, count))
            return list(keys)

        keys = await self._in_one(ask)
        # Processes exchange keys, from which each of them makes the same tasks.
        return await self._in_all(lambda: self._actor.sources.tasks(keys))

    async def _in_all(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Return what this process is answered, where every process that asks does the same.

        Raises:
            GrpoError: the environment fails in one of them; then all of them raise.
        """
        answer: T | None = None
        failure = ""
        try:
            with kept_random_states():
                answer = await ask()
        except GrpoError as error:
            failure = str(error)
        failures = self._actor.ranks.gather_values(failure) if self._is_shared else [failure]
        if message := next(filter(None, failures), ""):
            raise GrpoError(message)
        return cast("T", answer)

    def _source(self, name: str) -> Source:
        """Return the environment of the run with this name."""
        names = [source.name for source in self._actor.sources]
        if name not in names:
            raise ConfigError(f"this run has no environment {name!r}, but {', '.join(names)}")
        return self._actor.sources[name]

    async def references(self, tasks: Sequence[Task[Any]]) -> list[Script | None]:
        """Return the reference answer of each task; None for a task without one."""
        return list(await self._in_one(lambda: self._actor.sources.references(tasks)))

    async def cheats(self, tasks: Sequence[Task[Any]]) -> list[list[str | tuple[str, ...]]]:
        """Return the answers to each task that must get the floor, as its author declares them."""
        sources = [self._source(task.key.env) for task in tasks]
        if all(type(source.env).cheats is Environment.cheats for source in sources):
            return [[] for _ in tasks]

        async def ask() -> list[list[str | tuple[str, ...]]]:
            # Asked where the tasks' data are, which may be another process.
            asked = zip(sources, tasks, strict=True)
            return await asyncio.gather(*(source.verifier.cheats(task) for source, task in asked))

        return await self._in_one(ask)

    async def audit(self, groups: Sequence[Group[Any]]) -> list[Group[Any]]:
        """Return the groups with the audits of their attempts; processes audit a share each."""
        with kept_random_states():
            if self._is_shared:
                return await self._actor.audited(groups)
            return await self._actor.sources.audited(groups)

    async def _in_one(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Return what is answered; if all processes ask, what the first of them is answered.

        Raises:
            GrpoError: the environment fails, in all processes.
        """
        if not self._is_shared:
            with kept_random_states():
                return await ask()
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

    async def verify(self, attempts: Sequence[tuple[Task[Any], str | Rollout]]) -> list[Verdict]:
        """Return the verdicts on answers; processes that all ask judge a share each."""
        ranks = self._actor.ranks
        own = ranks.share(attempts) if self._is_shared else attempts
        with kept_random_states():
            verdicts_P1 = await self._actor.sources.verify(
                [task for task, _ in own],
                [[Rollout.of(text) if isinstance(text, str) else text] for _, text in own],
            )
        verdicts = [verdict for (verdict,) in verdicts_P1]
        return ranks.gather(verdicts) if self._is_shared else verdicts

    async def logprobs(self, attempts: Sequence[tuple[Task[Any], str]]) -> list[float | None]:
        """Return the mean log-probability per token of each answer; None where there is none.

        Raises:
            GrpoError: the weights are spread over processes that do not all ask.
        """
        policy, config = self._actor.policy, self._actor.config
        if policy.fills:
            return [None] * len(attempts)
        if policy.sharded and not self._is_shared:
            raise GrpoError(
                "log-probabilities need the weights of all processes, and only one of them asks; "
                "set trainer.shard=false"
            )
        rows = [self._row(task, answer) for task, answer in attempts]

        def compute() -> dict[int, float]:
            means: dict[int, float] = {}
            with torch.no_grad():
                for micro in policy.micro_batches(
                    [row for row in rows if row is not None],
                    max_tokens=config.trainer.micro_batch_tokens
                    or policy.tuning.micro_batch_tokens,
                    dtype=torch.float32,
                ):
                    logprob_BT, _ = policy.logprobs(micro, temperature=1.0)
                    sums_B = (logprob_BT * micro.trainable_BT).sum(dim=1)
                    for row, value in zip(micro.rows, sums_B.tolist(), strict=True):
                        means[id(row)] = value / len(row.segment.token_ids)
            return means

        means = await policy.thread.run(compute) if any(rows) else {}
        return [None if row is None else means[id(row)] for row in rows]

    def _row(self, task: Task[Any], answer: str) -> Row | None:
        """Return the row of an answer; None if it is empty or does not fit into the context."""
        policy = self._actor.policy
        prompt_ids = policy.encode(task.prompt)
        answer_ids = policy.encode_answer(task.prompt, answer)
        length = len(answer_ids)
        if not length or len(prompt_ids) + length > (policy.context or len(prompt_ids) + length):
            return None
        return Row(Segment(prompt_ids, answer_ids, (0.0,) * length, (1,) * length), 0.0, 0.0)


def describe_trained(source: Source) -> TrainedEnvironment:
    """Return what listeners may know about an environment of the run."""
    env, verifier = source.env, source.verifier
    return TrainedEnvironment(
        name=source.name,
        floor=env.floor,
        open_ended=env.open_ended,
        answer_in_prompt=env.answer_in_prompt,
        answer_at=env.answer_at,
        has_audit=type(env).audit is not Environment.audit,
        is_one_text=env.max_turns <= 1 and not verifier.has_agents and not verifier.has_episodes,
        is_one_by_one=verifier.one_by_one,
        can_be_ended=not verifier.is_in_this_process,
    )


@contextmanager
def kept_random_states() -> Iterator[None]:
    """Leave the global random generators, which verifiers in this process may use, as they are."""
    states = RandomStates.now()
    try:
        yield
    finally:
        states.restore()
