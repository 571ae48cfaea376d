"""Compute the side of grpo-core in trl_parity.py, from verdicts to optimizer steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from parity_batch import BUDGET, GROUP, PROMPTS, Batch, changed
from parity_float64 import Weights, gradients_of, set_weights, weights_of
from parity_settings import Result, Setting
from torch import Tensor

from grpo_core.config.config import RunConfig
from grpo_core.config.overrides import build_config, nested
from grpo_core.config.sizes import with_defaults
from grpo_core.engine.compute.batch import Row
from grpo_core.engine.policy.causal import Policy
from grpo_core.engine.policy.choose import load_policy
from grpo_core.train.algorithm.advantages import advantages
from grpo_core.train.algorithm.rewards import rewards
from grpo_core.train.update.updater import Updater, collate

COMMON = {
    "environment": "arithmetic",
    "prompts_per_step": PROMPTS,
    "group_size": GROUP,
    "model.dtype": "float64",
    "model.device": "cpu",
    "lora.enabled": False,
    "advantage.name": "grpo",
    "advantage.ddof": 1,
    "advantage.eps": 1e-4,
    "kl.beta": 0.0,
    "kl.estimator": "k3",
    "schedule.name": "constant",
    "schedule.warmup": 0,
    "optimizer.max_grad_norm": 1e9,
}
"""What grpo-core has in all settings that do not say otherwise: TRL's conventions."""


class Recorder(Updater):
    """Records loss and gradient of each optimizer step, and may then set the weights of the next.

    Args:
        policy: the policy.
        config: the configuration.
        moves: the weights of each step, of which the first are set already; None: the optimizer's.
    """

    def __init__(self, policy: Policy, config: RunConfig, moves: list[Weights] | None) -> None:
        super().__init__(policy, config, steps=1)
        self._next = moves and moves[1:]
        self.losses = [0.0]
        self.gradients: list[Weights] = []
        optimizer = self.optimizer.optimizer
        optimizer.register_step_pre_hook(self._record)
        optimizer.register_step_post_hook(self._move)

    def loss(self, *arguments: Any) -> tuple[Tensor, Tensor]:
        """Compute the loss of a micro-batch, and record it."""
        loss, old_BT = super().loss(*arguments)
        self.losses[-1] += loss.item()
        return loss, old_BT

    def _record(self, *_: Any) -> None:
        self.gradients.append(gradients_of(self.policy.model))
        self.losses.append(0.0)

    def _move(self, *_: Any) -> None:
        if self._next:
            set_weights(self.policy.model, self._next.pop(0))


class Ours:
    """Compute settings with grpo-core.

    Args:
        model: folder of the reference model.
        weights: the weights that the policy moves through.
        batch: what it is trained on.
    """

    def __init__(self, model: Path, weights: list[Weights], batch: Batch) -> None:
        self._model, self._weights, self._batch = model, weights, batch
        self._known: dict[str, Result] = {}

    def __call__(self, setting: Setting) -> Result:
        """Return losses and gradients of the optimizer steps of a setting."""
        if repr(setting) not in self._known:
            self._known[repr(setting)] = self._computed(setting)
        return self._known[repr(setting)]

    def _computed(self, setting: Setting) -> Result:
        passes = len(setting.visited) // setting.minibatches
        own = {"model.name": str(self._model), "trainer.mu": passes}
        config, _ = with_defaults(build_config([nested({**COMMON, **own, **setting.ours})]), 0)
        policy = load_policy(config, need_reference=config.needs_reference)
        set_weights(policy.model, self._weights[0])
        moves = None if setting.own_steps else [self._weights[i] for i in setting.visited]
        recorder = Recorder(policy, config, moves)
        recorder.update(self._rows(config, changed(self._batch, setting.change), recorder))
        end = weights_of(policy.model)
        change = {name: end[name] - self._weights[0][name] for name in end}
        return Result(
            recorder.losses[:-1], recorder.gradients, change if setting.own_steps else None
        )

    def _rows(self, config: RunConfig, batch: Batch, updater: Updater) -> list[list[Row]]:
        """Return the rows of each optimizer step, as `Grpo.collect` makes them."""
        groups = batch.groups()
        batch_rewards = rewards(groups)
        return collate(
            groups,
            advantages(batch_rewards, config.advantage),
            batch_rewards.scored_PG,
            aggregation=config.loss.aggregation,
            max_length=BUDGET,
            minibatches=config.trainer.minibatches,
            mask_truncated=config.loss.mask_truncated,
            skip_dead=updater.only_advantages,
        )
