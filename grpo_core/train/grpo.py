"""GRPO on one page: `collect` rolls out, verifies and compares; `update` takes the gradient steps.

How it differs from the paper (DeepSeekMath, arXiv 2402.03300): advantages use the population
standard deviation and are exactly 0 for equal rewards; rollouts that could not be scored are left
out of mean, standard deviation, loss and denominators; the reference policy stays fixed; with one
optimizer step per rollout batch the old log-probabilities are the policy's own, so the importance
ratio is exactly 1.

The default settings are not plain GRPO: advantages are those of gdpo (each reward part normalised
by itself) and the KL is k3_st (the value of k3 with the gradient of the KL); rate and weight of the
KL follow the model's size (`grpo_core.config.sizes`). `grpo run --recipe grpo` is plain GRPO.

In names, P stands for prompts, G for the rollouts of each.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from grpo_core.config.config import RunConfig
from grpo_core.engine.policy.memory_estimate import Workload
from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.events import BatchCollected
from grpo_core.protocol.types import Group, Task, TaskKey
from grpo_core.train.actor import WAIT, Actor
from grpo_core.train.algorithm.advantages import Advantage, advantages, pods
from grpo_core.train.algorithm.losses import Surrogate
from grpo_core.train.algorithm.refill import Refill
from grpo_core.train.algorithm.rewards import Rewards, overlong, rewards, shuffled
from grpo_core.train.rollout.queue import RolloutQueue, Turn
from grpo_core.train.rollout.tasks import TaskStream, draw_number, total_steps
from grpo_core.train.run.measure import decoded_together
from grpo_core.train.run.method import Clock, Rows
from grpo_core.train.run.metrics import (
    advantage_metrics,
    group_metrics,
    peak_memory_mb,
    staleness_metrics,
)
from grpo_core.train.update.updater import Updater, collate
from grpo_core.verify.sources import Sources

TRAINER_WAIT = "trainer_wait"
"""Name of the phase in which the trainer waits for rollouts."""


class Grpo:
    """Group Relative Policy Optimization; implements `run.method.Method`.

    What can be checked without the model is checked before it is loaded.

    Args:
        config: the configuration of the run.
        sources: its environments.
        make_actor: loads the model; takes `need_reference`, whether the reference is needed.
        estimator: computes the advantages, in place of the one that the config names.
        surrogate: computes the loss, in place of the one that the config names.

    Raises:
        ConfigError: the overlong buffer exceeds the longest rollout, or several processes would
            have to agree on the order of an asynchronous pipeline.
    """

    name = "GRPO"
    leaves_out_unasked = True

    def __init__(
        self,
        config: RunConfig,
        sources: Sources,
        *,
        make_actor: Callable[..., Actor],
        estimator: Advantage | None = None,
        surrogate: Surrogate | None = None,
    ) -> None:
        self.total = total_steps(config, sources, batch=config.prompts_per_step)
        self._estimator = estimator
        self.actor = make_actor(need_reference=config.needs_reference)
        if config.pipeline.max_staleness and self.actor.ranks.size > 1:
            raise ConfigError(
                f"pipeline.max_staleness={config.pipeline.max_staleness} needs one process, and "
                f"this run has {self.actor.ranks.size}: they would have to sample and update in "
                "the same order, which here depends on how fast each of them is; set it to 0"
            )
        self.updater = Updater(
            self.actor.policy,
            self.actor.config,
            steps=self.total,
            surrogate=surrogate,
            ranks=self.actor.ranks,
        )
        self.stream = TaskStream(config, sources)
        self._queue: RolloutQueue[BatchCollected] | None = None
        """The rollouts of the next steps, with `pipeline.max_staleness` above 0."""
        buffer = config.advantage.overlong_buffer
        for source in sources.trained:
            if buffer > (longest := self.actor.budgets[source.name].longest):
                raise ConfigError(
                    f"advantage.overlong_buffer is {buffer}, but an attempt at {source.name!r} "
                    f"has only {longest} tokens; lower it, or raise sampling.max_new_tokens"
                )

    @asynccontextmanager
    async def collecting(self) -> AsyncIterator[None]:
        """Discard at the end the rollouts that were sampled for later steps."""
        try:
            yield
        finally:
            await self._give_up()

    async def collect(self, step: int, clock: Clock) -> tuple[BatchCollected, Rows]:
        """Roll out groups, get their verdicts and compute their advantages.

        With `pipeline.max_staleness` above 0 the rollouts have been made, or begun, before.
        """
        config = self.actor.config
        if not config.pipeline.max_staleness:
            batch = await self._roll_out(step, start=self.stream.position, clock=clock)
        else:
            self._queue = self._queue or self._make_queue()
            batch = await self._queue.next(step, start=self.stream.position)
            clock.lap(TRAINER_WAIT)
            if self.actor.stop.is_made:  # this is the last step
                await self._give_up()
        self.stream.position += len(batch.groups)
        chosen = [batch.groups[number] for number in batch.chosen]
        batch_rewards = await self.rewards(chosen)
        advantage = self.advantages(batch_rewards)
        rows = collate(
            chosen,
            advantage,
            batch_rewards.scored_PG,
            aggregation=config.loss.aggregation,
            max_length=max(
                self.actor.budgets[source.name].longest for source in self.actor.sources.trained
            ),
            minibatches=config.trainer.minibatches,
            mask_truncated=config.loss.mask_truncated,
            skip_dead=self.updater.only_advantages,
        )
        metrics = {
            **batch.metrics,
            **advantage_metrics(advantage, batch_rewards.counted(advantage)),
            "tokens/trained": float(
                sum(sum(row.segment.trainable) for step_rows in rows for row in step_rows)
            ),
        }
        advantages_P = _by_group(batch.groups, batch.chosen, advantage)
        groups = tuple(
            replace(group, advantages=advantages_G)
            for group, advantages_G in zip(batch.groups, advantages_P, strict=True)
        )
        return replace(batch, groups=groups, metrics=MappingProxyType(metrics)), rows

    async def _roll_out(
        self, step: int, *, start: int, clock: Clock, turn: Turn | None = None
    ) -> BatchCollected:
        """Sample and judge the groups of a step; without whitening, these need no weights.

        Args:
            start: number of the first prompt.
            clock: measures the phases.
            turn: what the queue has to know; None if there is no queue.
        """
        config, sources = self.actor.config, self.actor.sources
        sources.forget_stats()
        refill = Refill(wanted=config.prompts_per_step, refills=config.sampling.refills)
        kept_mass, draw = 1.0, draw_number(config.seed, step)
        unasked = unasked_total = 0
        groups: list[Group[Any]] = []
        dealt: Counter[TaskKey] = Counter()

        def lap(phase: str) -> None:
            clock.lap(phase)
            if turn is not None and phase == "sync":
                turn.take_weights()
            if turn is not None and phase == "rollout" and refill.is_last_round:
                turn.pass_on(start + len(groups) + len(tasks_P))

        while refill.missing:
            unasked_before = self.stream.skips.total
            tasks_P = await self.stream.deal(
                sources, start + len(groups), refill.missing, draw=draw, askable=self.actor.askable
            )
            unasked += (unasked_total := self.stream.skips.total) - unasked_before
            new_groups, least_mass = await self.actor.sample_and_verify(
                tasks_P,
                attempts=config.group_size,
                step=step,
                dealt=dealt,
                oldest=None if turn is None else turn.oldest,
                lap=lap,
            )
            kept_mass = min(kept_mass, least_mass)
            new_rewards = self._comparable(self._judged(new_groups))
            refill.add(self.advantages(new_rewards, whiten=False))
            groups += new_groups
        hit_rate, chosen = sources.cache_hit_rate(), refill.chosen()
        refilled = float(len(groups) - len(chosen))
        metrics = {
            **group_metrics(
                groups,
                {source.name: source.env.parts for source in sources.trained},
                with_agents=sources.with_agents,
            ),
            **({} if hit_rate is None else {"verify/cache_hit_rate": hit_rate}),
            **({"groups/refilled": refilled} if config.sampling.refills else {}),
            **({"prompts/unasked": float(unasked)} if unasked_total else {}),
            "sampling/kept_mass": kept_mass,
        }
        if turn is not None:
            turn.pass_on(start + len(groups))
            metrics |= staleness_metrics(groups, version=step - 1) | clock.phases(WAIT)
        return BatchCollected(step, tuple(groups), tuple(chosen), MappingProxyType(metrics))

    def _make_queue(self) -> RolloutQueue[BatchCollected]:
        """Return the queue of the asynchronous pipeline, in which nothing is begun yet."""

        async def roll_out(turn: Turn) -> BatchCollected:
            clock = Clock(turn.since)
            clock.lap(WAIT)
            return await self._roll_out(turn.step, start=turn.start, clock=clock, turn=turn)

        return RolloutQueue(
            roll_out,
            max_staleness=self.actor.config.pipeline.max_staleness,
            total=self.total,
        )

    async def _give_up(self) -> None:
        queue, self._queue = self._queue, None
        if queue is not None:
            await queue.close()

    async def update(self, batch: BatchCollected, rows: Rows, clock: Clock) -> dict[str, float]:
        """Take the optimizer steps of a batch, in the policy's thread."""
        policy, updater = self.actor.policy, self.updater
        beta = updater.beta
        attempts = self.actor.config.prompts_per_step * self.actor.config.group_size
        if self._queue is not None:
            clock.lap("update")
            await self._queue.weights_taken()
        async with self.actor.changing_weights(batch.step):
            if self._queue is not None:
                clock.lap(TRAINER_WAIT)
            update_metrics = await policy.thread.run(lambda: updater.update(rows))
            updater.adapt(update_metrics["kl"], attempts=attempts)
            await policy.thread.run(
                lambda: policy.reference.refresh(self.actor.config.kl, batch.step)
            )
        clock.lap("update")
        curriculum_metrics = self.stream.curriculum.add(batch.groups)
        if self._queue is not None:
            self._queue.trained(batch.step)
        return {
            **batch.metrics,
            **update_metrics,
            **curriculum_metrics,
            "beta": beta,
            "steps/skipped_nonfinite": updater.skipped,
            **clock.metrics(),
            "memory/peak_mb": peak_memory_mb(policy.device),
        }

    async def rewards(self, groups: Sequence[Group[Any]]) -> Rewards:
        """Return the rewards from which the advantages of `groups` are computed.

        They are the verdicts, and what the config adds to them or leaves out.
        """
        config, group_rewards = self.actor.config, self._judged(groups)
        if config.kl.placement == "reward" and config.kl.is_used:
            kl_PG = await self.actor.policy.thread.run(
                lambda: self.updater.divergences([group.rollouts for group in groups])
            )
            group_rewards = group_rewards.plus(kl_PG, -self.updater.beta)
        return self._comparable(group_rewards)

    def _judged(self, groups: Sequence[Group[Any]]) -> Rewards:
        """Return the rewards before a KL, which hardly two completions share.

        With it no group would be without a signal, and none would be refilled.
        """
        config = self.actor.config
        group_rewards = rewards(groups)
        if config.trainer.shuffle_rewards:
            group_rewards = shuffled(group_rewards, [group.task for group in groups])
        if config.advantage.overlong_buffer:
            lengths_PG = torch.tensor(
                [[rollout.sampled_tokens for rollout in group.rollouts] for group in groups]
            )
            longest_P1 = torch.tensor(
                [[self.actor.budgets[group.task.key.env].longest] for group in groups]
            )
            penalty_PG = overlong(
                lengths_PG, longest=longest_P1, buffer=config.advantage.overlong_buffer
            )
            group_rewards = group_rewards.plus(penalty_PG, config.advantage.overlong_weight)
        return group_rewards

    def _comparable(self, group_rewards: Rewards) -> Rewards:
        """Return the rewards without the completions that are not to be compared."""
        config = self.actor.config
        if config.advantage.keep is not None:
            group_rewards = replace(
                group_rewards, scored_PG=pods(group_rewards, keep=config.advantage.keep)
            )
        # A single scored rollout has nothing to be compared with.
        enough_P1 = group_rewards.scored_PG.sum(dim=1, keepdim=True) >= 2
        return replace(group_rewards, scored_PG=group_rewards.scored_PG & enough_P1)

    def advantages(self, group_rewards: Rewards, *, whiten: bool | None = None) -> Tensor:
        """Return the advantages by the configured estimator, or that of a plugin.

        Args:
            group_rewards: of P groups of G rollouts.
            whiten: whether to whiten over the batch; as configured if left out.

        Returns:
            Those of the rollouts (P, G), or of the policy's turns (P, G, T).
        """
        config = self.actor.config.advantage
        if whiten is not None:
            config = config.model_copy(update={"whiten": whiten})
        return advantages(group_rewards, config, self._estimator)

    async def prepare(self) -> None:
        """Do nothing: the first prompts are tried by the run itself."""

    async def first_tasks(self) -> list[Task[Any]]:
        """Return the tasks of the first step."""
        return await self.stream.first(self.actor.sources, self.actor.askable)

    def example_texts(self) -> None:
        """Return None: no file is learned from."""

    def workload(self, prompts: Sequence[tuple[int, ...]]) -> Workload:
        """Estimate the largest batches from the tokens of the first prompts."""
        actor, config = self.actor, self.actor.config
        new = max(budget.dialogue or budget.longest for budget in actor.budgets.values())
        minibatch_prompts = prompts[
            : math.ceil(config.prompts_per_step / config.trainer.minibatches)
        ]
        rows = [
            actor.policy.longest_row(prompt, new, attempt)
            for prompt in minibatch_prompts
            for attempt in range(config.group_size)
        ]
        decoded = [(config.prompts_per_step, config.group_size), *decoded_together(actor)]
        return Workload(rows, decoded, prompt=max(map(len, prompts)), new=new)


def _by_group(
    groups: Sequence[Group[Any]], chosen: Sequence[int], advantage: Tensor
) -> list[tuple[float | tuple[float, ...], ...]]:
    """Return the advantages of the rollouts of each group; 0 in those that were not chosen.

    If there is one for each turn, a rollout has as many as the policy had turns in it.
    """
    values = advantage.new_zeros(len(groups), *advantage.shape[1:])
    values[list(chosen)] = advantage
    if advantage.dim() == 2:
        return list(map(tuple, values.tolist()))
    return [
        tuple(
            tuple(value_T[: rollout.turns])
            for rollout, value_T in zip(group.rollouts, value_GT, strict=True)
        )
        for group, value_GT in zip(groups, values.tolist(), strict=True)
    ]
