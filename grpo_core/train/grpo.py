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
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from grpo_core.config.config import RunConfig
from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.types import Group, TaskKey
from grpo_core.train.actor import Actor
from grpo_core.train.algorithm.advantages import Advantage, advantages, pods
from grpo_core.train.algorithm.losses import Surrogate
from grpo_core.train.algorithm.refill import Refill
from grpo_core.train.algorithm.rewards import Rewards, overlong, rewards, shuffled
from grpo_core.train.compute.batch import collate
from grpo_core.train.policy.memory import Workload
from grpo_core.train.rollout.tasks import TaskStream, total_steps
from grpo_core.train.run.measure import decoded_together
from grpo_core.train.run.method import Batch, Clock
from grpo_core.train.run.metrics import advantage_metrics, group_metrics, peak_memory_mb
from grpo_core.train.update.updater import Updater
from grpo_core.verify.sources import Sources


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
        ConfigError: the overlong buffer exceeds the longest rollout.
    """

    name = "GRPO"

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
        self.updater = Updater(
            self.actor.policy,
            self.actor.config,
            steps=self.total,
            surrogate=surrogate,
            ranks=self.actor.ranks,
        )
        self.stream = TaskStream(config, sources)
        buffer = config.advantage.overlong_buffer
        for source in sources.trained:
            if buffer > (longest := self.actor.budgets[source.name].longest):
                raise ConfigError(
                    f"advantage.overlong_buffer is {buffer}, but an attempt at {source.name!r} "
                    f"has only {longest} tokens; lower it, or raise sampling.max_new_tokens"
                )

    async def collect(self, step: int) -> Batch:
        """Roll out groups, get their verdicts and compute their advantages."""
        config, sources, clock = self.actor.config, self.actor.sources, Clock()
        sources.forget_stats()
        refill = Refill(wanted=config.prompts_per_step, refills=config.sampling.refills)
        kept_mass = 1.0
        dealt: Counter[TaskKey] = Counter()
        while refill.missing:
            tasks_P = await self.stream.deal(sources, refill.missing, step=step)
            new_groups, least_mass = await self.actor.sample_and_verify(
                tasks_P, attempts=config.group_size, step=step, dealt=dealt, lap=clock.lap
            )
            kept_mass = min(kept_mass, least_mass)
            judged_rewards = self._comparable(self._judged(new_groups))
            refill.add(new_groups, self.advantages(judged_rewards, whiten=False))
        groups, chosen_P = refill.groups, refill.chosen()
        batch_rewards = await self.rewards([groups[p] for p in chosen_P.tolist()])
        advantage_PG = self.advantages(batch_rewards)
        logged_PG = advantage_PG.new_zeros(len(groups), config.group_size)
        logged_PG[chosen_P] = advantage_PG
        rows = collate(
            [groups[p].rollouts for p in chosen_P.tolist()],
            advantage_PG,
            batch_rewards.scored_PG,
            aggregation=config.loss.aggregation,
            max_length=max(self.actor.budgets[source.name].longest for source in sources.trained),
            minibatches=config.trainer.minibatches,
            mask_truncated=config.loss.mask_truncated,
            skip_dead=self.updater.only_advantages,
        )
        hit_rate = sources.cache_hit_rate()
        refilled = float(len(groups) - len(chosen_P))
        metrics = {
            **group_metrics(groups, {source.name: source.env.parts for source in sources.trained}),
            **advantage_metrics(advantage_PG, batch_rewards.scored_PG),
            **({} if hit_rate is None else {"verify/cache_hit_rate": hit_rate}),
            **({"groups/refilled": refilled} if config.sampling.refills else {}),
            "sampling/kept_mass": kept_mass,
            "tokens/trained": float(
                sum(sum(row.rollout.trainable) for step_rows in rows for row in step_rows)
            ),
        }
        return Batch(step, rows, clock, groups, logged_PG, metrics)

    async def update(self, batch: Batch) -> dict[str, float]:
        """Take the optimizer steps of a batch, in the policy's thread."""
        policy, updater = self.actor.policy, self.updater
        beta = updater.beta
        attempts = self.actor.config.prompts_per_step * self.actor.config.group_size

        def compute() -> dict[str, float]:
            metrics = updater.update(batch.rows)
            updater.adapt(metrics["kl"], attempts=attempts)
            policy.reference.refresh(self.actor.config.kl, batch.step)
            return metrics

        update_metrics = await policy.thread.run(compute)
        self.actor.updated(batch.step)
        batch.clock.lap("update")
        return {
            **batch.metrics,
            **update_metrics,
            **self.stream.curriculum.add(batch.groups),
            "beta": beta,
            "steps/skipped_nonfinite": updater.skipped,
            **batch.clock.metrics(),
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
        group_rewards = rewards([group.verdicts for group in groups])
        if config.trainer.shuffle_rewards:
            group_rewards = shuffled(group_rewards, [group.task for group in groups])
        if config.advantage.overlong_buffer:
            lengths_PG = torch.tensor(
                [[sum(rollout.trainable) for rollout in group.rollouts] for group in groups]
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
        """Return the advantages (P, G) by the configured estimator, or that of a plugin.

        Args:
            whiten: whether to whiten over the batch; as configured if left out.
        """
        config = self.actor.config.advantage
        if whiten is not None:
            config = config.model_copy(update={"whiten": whiten})
        return advantages(group_rewards, config, self._estimator)

    async def prepare(self) -> None:
        """Do nothing: the first prompts are tried by the run itself."""

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
