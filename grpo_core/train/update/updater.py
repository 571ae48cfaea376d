"""The update: one rollout batch, `mu` passes, `minibatches` optimizer steps a pass, micro-batches of bounded size in each step."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial

import torch
from accelerate import Accelerator
from accelerate.utils import GradientAccumulationPlugin
from torch import Tensor

from grpo_core.config.config import RunConfig
from grpo_core.config.settings import PLUGIN
from grpo_core.protocol.errors import RunStoppedError
from grpo_core.protocol.types import Rollout
from grpo_core.train.algorithm.losses import (
    KL_ESTIMATORS,
    LEVELS,
    SURROGATES,
    Surrogate,
    adapted,
    clipped,
    divergence,
    truncated_importance,
)
from grpo_core.train.compute.batch import MicroBatch, Row
from grpo_core.train.policy.causal import Policy
from grpo_core.train.policy.sharding import put_together
from grpo_core.train.ranks import Ranks
from grpo_core.train.update.optimizer import build_optimizer, build_schedule

MAX_NONFINITE = 3
IDLE = Row(Rollout((), "stop", (0,), (0,), (0.0,), (0,)), 0.0, 0.0)
"""Adds nothing to loss and gradient: for a process that has to make a forward pass without rows of its own."""


@dataclass(slots=True)
class Sums:
    """Totals over the micro-batches of one optimizer step, kept on the device until the step is over. kl: NaN without a reference."""

    policy_loss: float | Tensor = 0.0
    kl_loss: float | Tensor = 0.0
    bonus: float | Tensor = 0.0
    kl: float | Tensor = 0.0
    entropy: float | Tensor = 0.0
    logprob: float | Tensor = 0.0
    gap: float | Tensor = 0.0
    clipped: float | Tensor = 0.0
    tokens: float | Tensor = 0.0
    rows: float | Tensor = 0.0

    def add_up(self, ranks: Ranks) -> None:
        """Those of all processes."""
        names = [field.name for field in fields(self)]
        found = ranks.everywhere([float(getattr(self, name)) for name in names])
        for name, values in zip(names, zip(*found, strict=True), strict=True):
            setattr(self, name, sum(values))

    def means(self, beta: float) -> dict[str, float]:
        """Token means; NaN where nothing was measured (no token, or no reference)."""
        tokens = float(self.tokens) or math.nan
        penalty = beta * float(self.kl_loss)
        return {
            "loss": float(self.policy_loss) + penalty - float(self.bonus),
            "policy_loss": float(self.policy_loss),
            "kl": float(self.kl) / tokens,
            "kl/sequence": float(self.kl) / (float(self.rows) or math.nan),
            "kl_penalty": penalty,
            "entropy": float(self.entropy) / tokens,
            "logprob/mean": float(self.logprob) / tokens,
            "sampling/logprob_gap": float(self.gap) / tokens,
            "clip_fraction": float(self.clipped) / tokens,
        }


class Updater:
    """Turns rows into optimizer steps.

    skipped: steps left out because loss or gradient was not finite; steps: optimizer steps taken in the batch under way; beta: the
    present weight of the KL; steps_per_batch: how far the schedule goes with each batch. surrogate: a plugin's, in place of the one that
    the config names. ranks: the processes that share the rows.
    """

    def __init__(
        self,
        policy: Policy,
        config: RunConfig,
        *,
        steps: int,
        surrogate: Surrogate | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.policy = policy
        self._ranks = ranks or Ranks(meeting_seconds=config.trainer.meeting_seconds)
        self.config = config
        self.beta = config.kl.beta
        self._surrogate = surrogate or SURROGATES[config.loss.name]
        # Only float16 needs accelerate's gradient scaler; which type the forward pass computes in is the policy's affair.
        # The plugin says "1" out loud: without it an environment variable could rescale every loss.
        self.accelerator = Accelerator(
            cpu=policy.device.type == "cpu",
            mixed_precision="fp16" if policy.compute_dtype == torch.float16 else "no",
            gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1),
        )
        self.parameters = [p for _, p in policy.trainable()]
        self.steps_per_batch = config.trainer.mu * config.trainer.minibatches
        self.optimizer = self.accelerator.prepare(
            build_optimizer(self.parameters, config.optimizer)
        )
        self.schedule = build_schedule(
            self.optimizer.optimizer, config.schedule, total=steps * self.steps_per_batch
        )
        self.skipped = 0
        self.skipped_in_a_row = 0
        self.steps = 0

    def update(self, steps: Sequence[Sequence[Row]]) -> dict[str, float]:
        """Train on the rows of one rollout batch; metrics are means over its optimizer steps. Without a row that teaches
        anything the loss is 0, and what is a mean over tokens NaN."""
        self.steps = 0
        micros = [self._micro_batches(self._ranks.share(rows)) for rows in steps]
        # Until the first optimizer step the policy is the one that sampled: its log-probs come on the way, without a pass of their own.
        old: list[list[Tensor | None]] = [
            [self._old(m) if i else None for m in step] for i, step in enumerate(micros)
        ]
        reference = [[self._reference(m) for m in step] for step in micros]
        history: list[dict[str, float]] = []
        for _ in range(self.config.trainer.mu):
            for i in range(self.config.trainer.minibatches):
                if i < len(micros):
                    values, old[i] = self._optimizer_step(micros[i], old[i], reference[i])
                    history.append(values)
                self._advance()
        if not history:
            return {**Sums().means(self._loss_beta()), "grad_norm": math.nan, "lr": self._rate()}
        return {name: _mean([values[name] for values in history]) for name in history[0]}

    def adapt(self, kl: float, *, attempts: int) -> None:
        """Move beta towards its target, after a step of so many attempts with that KL per token."""
        if math.isfinite(kl):
            self.beta = adapted(self.beta, kl, attempts, self.config.kl)

    @torch.no_grad()
    def divergences(self, rollouts_PG: Sequence[Sequence[Rollout]]) -> Tensor:
        """The KL of each completion (P, G) under the present policy, summed over its tokens: for a KL in the reward."""
        rows = [Row(rollout, 0.0, 0.0) for rollouts in rollouts_PG for rollout in rollouts]
        found: dict[int, float] = {}
        for micro in self._micro_batches(rows):
            logprob_BT, reference_BT = self._old(micro), self._reference(micro)
            assert reference_BT is not None
            kl_BT = KL_ESTIMATORS[self.config.kl.estimator](logprob_BT, reference_BT)
            sums = torch.where(micro.trainable_BT != 0, kl_BT, 0.0).sum(dim=1).tolist()
            found |= {id(row): value for row, value in zip(micro.rows, sums, strict=True)}
        return torch.tensor([found[id(row)] for row in rows], dtype=torch.float64).reshape(
            len(rollouts_PG), -1
        )

    def loss(
        self, micro: MicroBatch, old_BT: Tensor | None, reference_BT: Tensor | None, sums: Sums
    ) -> tuple[Tensor, Tensor]:
        """The micro-batch's share of the loss of its optimizer step; adds what it saw to `sums`.

        old_BT: log-probs of the policy that sampled; None: it is the present one. They are returned too, the present ones for None.
        """
        config = self.config
        logprob_BT, entropy_BT = self.policy.logprobs(
            micro, temperature=config.sampling.temperature, entropy=config.loss.entropy != 0
        )
        old_BT = logprob_BT.detach() if old_BT is None else old_BT
        weight_BT = micro.weight_B1 * micro.trainable_BT
        anchor_BT = old_BT if reference_BT is None or config.loss.anchor == "old" else reference_BT
        log_ratio_BT = LEVELS[config.loss.level](logprob_BT, anchor_BT, micro.trainable_BT)
        loss_BT = self._surrogate(log_ratio_BT, logprob_BT, micro.advantage_B1, config.loss)
        if config.loss.tis_cap is not None:
            loss_BT = loss_BT * truncated_importance(old_BT, micro.generated_BT, config.loss)
        loss = _masked_sum(loss_BT, weight_BT)
        sums.policy_loss += loss.detach()
        if config.loss.entropy:
            bonus = config.loss.entropy * _masked_sum(entropy_BT, weight_BT)
            loss = loss - bonus
            sums.bonus += bonus.detach()
        if reference_BT is not None:
            kl_BT = divergence(logprob_BT, old_BT, reference_BT, config.kl)
            kl_loss = _masked_sum(kl_BT, weight_BT)
            loss = loss + self._loss_beta() * kl_loss
            sums.kl_loss += kl_loss.detach()
            sums.kl += _masked_sum(kl_BT.detach(), micro.trainable_BT)
        with torch.no_grad():
            sums.tokens += micro.trainable_BT.sum()
            sums.rows += micro.trainable_BT.any(dim=1).sum()
            sums.gap += _masked_sum((old_BT - micro.generated_BT).abs(), micro.trainable_BT)
            sums.entropy += _masked_sum(entropy_BT, micro.trainable_BT)
            sums.logprob += _masked_sum(logprob_BT, micro.trainable_BT)
            sums.clipped += _masked_sum(
                clipped(log_ratio_BT, micro.advantage_B1, config.loss), micro.trainable_BT
            )
        return loss, old_BT

    def _optimizer_step(
        self,
        micros: Sequence[MicroBatch],
        old: Sequence[Tensor | None],
        reference: Sequence[Tensor | None],
    ) -> tuple[dict[str, float], list[Tensor | None]]:
        sums = Sums(kl=0.0 if self.config.needs_reference else math.nan)
        found: list[Tensor | None] = []
        self.optimizer.zero_grad()
        if (
            not micros and self.accelerator.scaler is not None
        ):  # float16's scaler finds its first scale where it scales a loss
            self.accelerator.scaler.scale(torch.zeros((), device=self.policy.device))
        for micro, old_BT, reference_BT in zip(micros, old, reference, strict=True):
            loss, found_BT = self.loss(micro, old_BT, reference_BT, sums)
            # Gradients of shared-out weights are averaged over the processes on the way, where the sum is wanted.
            self.accelerator.backward(loss * self._ranks.size if self.policy.sharded else loss)
            del loss  # what is left of its graph lies all over the memory that the next one needs in large pieces
            found.append(found_BT)
        for parameter in self.parameters:
            if (
                parameter.grad is None
            ):  # no row here: the optimizer goes on by its momentum, as if a gradient of 0 had been computed
                parameter.grad = torch.zeros_like(parameter)
        if self._ranks.size > 1:
            sums.add_up(
                self._ranks
            )  # the weights of the rows are those of the whole step, so that sums are all that is needed
            if not self.policy.sharded:
                self._ranks.add(
                    [parameter.grad for parameter in self.parameters if parameter.grad is not None]
                )
        norm = float(
            put_together(
                self.accelerator.clip_grad_norm_(
                    self.parameters, self.config.optimizer.max_grad_norm
                )
            )
        )
        values = {**sums.means(self._loss_beta()), "grad_norm": norm, "lr": self._rate()}
        if math.isfinite(values["loss"]) and (math.isfinite(norm) or self._scale_was_too_large()):
            self.optimizer.step()
            self.steps += 1
            self.skipped_in_a_row = 0
        else:
            self._skip(values["loss"], norm)
        return values, found

    def _scale_was_too_large(self) -> bool:
        """Whether an infinite gradient is float16's scaler feeling for its scale: it leaves the step out itself and lowers the scale."""
        scaler = self.accelerator.scaler
        return scaler is not None and scaler.get_scale() > 1

    def _skip(self, loss: float, norm: float) -> None:
        self.optimizer.zero_grad()
        if self.accelerator.scaler is not None:
            self.accelerator.scaler.update()  # forgets that the gradients were unscaled
        self.skipped += 1
        self.skipped_in_a_row += 1
        if self.skipped_in_a_row >= MAX_NONFINITE:
            raise RunStoppedError(
                f"loss or gradient was not finite in {MAX_NONFINITE} optimizer steps in a row (loss {loss}, gradient norm {norm}); "
                "lower optimizer.lr, or use --dtype float32"
            )

    @property
    def only_advantages(self) -> bool:
        """Whether an attempt with an advantage of 0 adds nothing to the loss, so that it need not be computed."""
        return (
            self._loss_beta() == 0
            and not self.config.loss.entropy
            and not self.config.loss.name.startswith(PLUGIN)
        )

    def _loss_beta(self) -> float:
        return self.beta if self.config.kl.placement == "loss" else 0.0

    def _advance(self) -> None:
        """The rate follows the run's plan, also past steps that were left out, of which torch thinks that they were forgotten."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
            self.schedule.step()

    def _rate(self) -> float:
        return float(self.schedule.get_last_lr()[0])

    def _micro_batches(self, rows: Sequence[Row]) -> list[MicroBatch]:
        dtype = (
            torch.float64 if next(iter(self.parameters)).dtype == torch.float64 else torch.float32
        )
        policy = self.policy
        make = partial(
            policy.micro_batches, max_tokens=self.config.trainer.micro_batch_tokens, dtype=dtype
        )
        found = list(make(rows))
        if policy.sharded:  # all have to make equally many passes
            found += list(make([IDLE])) * (max(self._ranks.everywhere(len(found))) - len(found))
        return found

    @torch.no_grad()
    def _old(self, micro: MicroBatch) -> Tensor:
        return self.policy.logprobs(micro, temperature=self.config.sampling.temperature)[0]

    def _reference(self, micro: MicroBatch) -> Tensor | None:
        if not self.config.needs_reference:
            return None
        return self.policy.reference_logprobs(micro, temperature=self.config.sampling.temperature)


def _mean(values: Sequence[float]) -> float:
    """Of those that were measured; NaN if none was."""
    measured = [value for value in values if not math.isnan(value)]
    return sum(measured) / len(measured) if measured else math.nan


def _masked_sum(values_BT: Tensor, weight_BT: Tensor) -> Tensor:
    """Sum of weight * value; padding may hold anything, also inf, and contributes neither value nor gradient."""
    return (
        torch.where(
            weight_BT != 0, values_BT.to(torch.promote_types(values_BT.dtype, torch.float32)), 0.0
        )
        * weight_BT
    ).sum()
