"""Update the policy on one rollout batch.

A batch is trained on in `mu` passes of `minibatches` optimizer steps, and each step computes
micro-batches of bounded size.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import GradientAccumulationPlugin
from torch import Tensor

from grpo_core.config.config import RunConfig
from grpo_core.config.settings import PLUGIN
from grpo_core.engine.compute.batch import MicroBatch, Row
from grpo_core.engine.models.reference import ReferenceStates
from grpo_core.engine.policy.causal import Policy
from grpo_core.engine.policy.sharding import gather_full
from grpo_core.engine.ranks import Ranks
from grpo_core.protocol.errors import RunStoppedError
from grpo_core.protocol.types import Group, Rollout, Segment
from grpo_core.train.algorithm.losses import (
    AGGREGATIONS,
    FULL,
    KL_ESTIMATORS,
    LEVELS,
    SURROGATES,
    Surrogate,
    adapted,
    clipped,
    divergence,
    k3,
    truncated,
    truncated_importance,
)
from grpo_core.train.update.optimizer import build_optimizer, build_schedule
from grpo_core.train.update.sums import Sums, masked_sum
from grpo_core.train.update.token_values import TokenValuesKept

MAX_NONFINITE = 3
"""Number of optimizer steps in a row with a loss or gradient that is not finite at which the run
stops."""
EMPTY_ROW = Row(Segment((0,), (0,), (0.0,), (0,)), 0.0, 0.0)
"""A row that adds nothing to loss and gradient, for a process that has to make a forward pass
without rows of its own."""


def collate(
    groups: Sequence[Group[Any]],
    advantage: Tensor,
    scored_PG: Tensor,
    *,
    aggregation: str,
    max_length: int,
    minibatches: int = 1,
    mask_truncated: bool = False,
    skip_dead: bool = False,
) -> list[list[Row]]:
    """Split the attempts of one batch into a list of rows per optimizer step.

    The split is by prompts, as even as possible. Unscored attempts are left out of everything, and
    a step without a scored row is left out. The weights of a step's rows are fixed here, over the
    whole step; the length of an attempt is that of all its segments.

    Args:
        groups: the rollouts of P prompts, G each.
        advantage: of the rollouts (P, G), or of the policy's turns in them (P, G, T).
        scored_PG: which of them were scored.
        aggregation: how token losses are weighted (see `losses.AGGREGATIONS`).
        max_length: the configured generation budget in tokens.
        minibatches: number of optimizer steps.
        mask_truncated: leave truncated attempts out of the loss and its denominators, too.
        skip_dead: do not compute groups whose advantages are all exactly 0, but keep them in the
            denominators. This is exact where the loss depends on nothing but the advantage.
    """
    P, steps = len(groups), []
    computed = [bool(advantage[p].any()) or not skip_dead for p in range(P)]
    for i in range(minibatches):
        kept = [
            (p, g)
            for p in range(i * P // minibatches, (i + 1) * P // minibatches)
            for g, rollout in enumerate(groups[p].rollouts)
            if scored_PG[p, g] and not (mask_truncated and rollout.finish == "length")
        ]
        if kept:
            lengths = [groups[p].rollouts[g].sampled_tokens for p, g in kept]
            weights = AGGREGATIONS[aggregation](lengths, max_length)
            steps.append(
                [
                    row
                    for (p, g), weight in zip(kept, weights, strict=True)
                    if computed[p]
                    for row in rows_of(
                        groups[p].rollouts[g], advantage[p, g], weight, source=(p, g)
                    )
                ]
            )
    return steps


def rows_of(
    rollout: Rollout, advantage: Tensor, weight: float, *, source: tuple[int, int] | None = None
) -> Iterator[Row]:
    """Yield a row for each segment of a rollout that has a trainable token.

    If none has, there is a row for the first one, unless nobody asked the policy for anything.

    Args:
        rollout: the rollout.
        advantage: of the whole rollout (), or of each turn (T,).
        weight: weight of each of its trainable tokens.
        source: the numbers of its prompt and attempt in the batch.

    Raises:
        ValueError: there is an advantage for each turn, and the rollout does not say which tokens
            each turn has.
    """
    by_token = None if advantage.dim() == 0 else _by_token(rollout, advantage)
    segments = tuple(enumerate(rollout.segments))
    trained = [(number, segment) for number, segment in segments if any(segment.trainable)]
    rows = trained or segments[: bool(rollout.prompt_ids)]
    for number, segment in rows:
        yield Row(
            segment,
            float(advantage)
            if by_token is None
            else tuple(next(by_token) if sampled else 0.0 for sampled in segment.trainable),
            weight,
            first=number == rows[0][0],
            source=None if source is None else (*source, number),
        )


def _by_token(rollout: Rollout, advantage_T: Tensor) -> Iterator[float]:
    """Return the advantage of each trainable token of a rollout, segment by segment.

    A turn is the number of trainable tokens that `Rollout.turn_lengths` says, whether or not tokens
    of the environment lie between it and the next one.
    """
    if sum(rollout.turn_lengths) != rollout.sampled_tokens:
        raise ValueError(
            f"the turns of a rollout have {sum(rollout.turn_lengths)} tokens together, and "
            f"{rollout.sampled_tokens} of its tokens are trainable; set Rollout.turn_lengths"
        )
    return (
        value
        for value, length in zip(advantage_T.tolist(), rollout.turn_lengths, strict=False)
        for _ in range(length)
    )


class Updater:
    """Turn rows into optimizer steps.

    Args:
        policy: the policy to train.
        config: the configuration of the run, complete (`config.sizes.with_defaults`).
        steps: number of rollout batches of the run, for the schedule.
        surrogate: surrogate of a plugin, in place of the one that the config names.
        ranks: the processes that share the rows.
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
        assert config.kl.beta is not None, "kl.beta is unset; take config.sizes.with_defaults"
        self.beta = config.kl.beta
        """Present weight of the KL."""
        self._surrogate = surrogate or SURROGATES[config.loss.name]
        # Only float16 needs accelerate's gradient scaler; the policy decides the type of the
        # forward pass. The plugin sets num_steps=1 explicitly: without it an environment variable
        # could rescale every loss.
        self.accelerator = Accelerator(
            cpu=policy.device.type == "cpu",
            mixed_precision="fp16" if policy.compute_dtype == torch.float16 else "no",
            gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1),
        )
        self.parameters = [p for _, p in policy.trainable()]
        self._make_micros = partial(
            policy.micro_batches,
            max_tokens=config.trainer.micro_batch_tokens or policy.tuning.micro_batch_tokens,
            dtype=torch.promote_types(self.parameters[0].dtype, torch.float32),
        )
        """Returns the micro-batches of some rows."""
        self.steps_per_batch = config.trainer.mu * config.trainer.minibatches
        """Optimizer steps by which the schedule advances with each batch."""
        self.optimizer = self.accelerator.prepare(
            build_optimizer(self.parameters, config.optimizer)
        )
        self.schedule = build_schedule(
            self.optimizer.optimizer, config.schedule, total=steps * self.steps_per_batch
        )
        self.skipped = 0
        """Steps skipped so far because loss or gradient was not finite."""
        self.skipped_in_a_row = 0
        """Steps skipped since the last one that was taken."""
        self.steps = 0
        """Optimizer steps taken in the present batch."""
        self.token_values = TokenValuesKept() if config.log.ratios else None
        """What was seen of each token in the last batch, if it is logged."""

    def update(self, steps: Sequence[Sequence[Row]]) -> dict[str, float]:
        """Train on the rows of one rollout batch.

        Args:
            steps: the rows of each optimizer step of a pass.

        Returns:
            Metrics, as means over the optimizer steps. If no row gives a training signal, the loss
            is 0 and means over tokens are NaN.
        """
        self.steps = 0
        if self.token_values is not None:
            self.token_values = TokenValuesKept()
        micros = [list(self._make_micros(self._ranks.share(rows))) for rows in steps]
        if self.policy.sharded:  # every process has to make as many passes
            for step in micros:
                step += self._empty_passes(len(step))
        # Until the first optimizer step the policy is the one that sampled: its log-probs come from
        # the training pass, without a forward pass of their own.
        old: list[list[Tensor | None]] = [
            [self._present_logprobs(m) if i else None for m in step]
            for i, step in enumerate(micros)
        ]
        reference = [[self._reference_states(m) for m in step] for step in micros]
        history: list[dict[str, float]] = []
        for _ in range(self.config.trainer.mu):
            for i in range(self.config.trainer.minibatches):
                if i < len(micros):
                    values, old[i] = self._optimizer_step(micros[i], old[i], reference[i])
                    history.append(values)
                self._advance()
        if self.token_values is not None:
            self.token_values.gather(self._ranks)
        if not history:
            return {
                **self._no_sums().means(self._loss_beta()),
                "grad_norm": math.nan,
                "lr": self._rate(),
            }
        return {
            name: _mean_of_measured([values[name] for values in history]) for name in history[0]
        }

    def adapt(self, kl: float, *, attempts: int) -> None:
        """Move beta towards the KL target.

        Args:
            kl: the measured KL per token of the last step.
            attempts: completions of that step.
        """
        if math.isfinite(kl):
            self.beta = adapted(self.beta, kl, attempts, self.config.kl)

    @torch.no_grad()
    def divergences(self, rollouts_PG: Sequence[Sequence[Rollout]]) -> Tensor:
        """Return the KL of each attempt (P, G) to the reference, summed over its tokens.

        It is computed with the present policy, for a KL in the reward.
        """
        rows_by_attempt = [
            list(rows_of(rollout, torch.zeros(()), 0.0))
            for rollouts in rollouts_PG
            for rollout in rollouts
        ]
        kl_by_row: dict[int, float] = {}
        for micro in self._make_micros([row for rows in rows_by_attempt for row in rows]):
            logprob_BT = self._present_logprobs(micro)
            reference_BT = self.policy.reference_logprobs(
                micro, temperature=self.config.sampling.temperature
            )
            kl_BT = KL_ESTIMATORS[self.config.kl.estimator](logprob_BT, reference_BT)
            sums = torch.where(micro.trainable_BT != 0, kl_BT, 0.0).sum(dim=1).tolist()
            kl_by_row |= {id(row): value for row, value in zip(micro.rows, sums, strict=True)}
        return torch.tensor(
            [sum(kl_by_row[id(row)] for row in rows) for rows in rows_by_attempt],
            dtype=torch.float64,
        ).reshape(len(rollouts_PG), -1)

    def loss(
        self,
        micro: MicroBatch,
        old_BT: Tensor | None,
        reference: ReferenceStates | None,
        sums: Sums,
    ) -> tuple[Tensor, Tensor]:
        """Compute the micro-batch's share of the loss of its step, and add its totals to `sums`.

        Args:
            micro: the micro-batch.
            old_BT: log-probs of the policy that sampled; None if that is the present policy.
            reference: what the reference computed for it (`Policy.reference_states`), if there is
                one.
            sums: totals of the optimizer step.

        Returns:
            The loss, and the log-probs (B, T) of the policy that sampled: `old_BT`, or the present
            ones if it is None.
        """
        config = self.config
        logprob_BT, entropy_BT, reference_BT, full_BT = self.policy.token_values(
            micro,
            reference,
            temperature=config.sampling.temperature,
            entropy=config.loss.entropy != 0,
            kl=config.kl.estimator == FULL and self._loss_beta() != 0,
        )
        old_BT = logprob_BT.detach() if old_BT is None else old_BT
        weight_BT = micro.weight_B1 * micro.trainable_BT
        anchor_BT = old_BT if reference_BT is None or config.loss.anchor == "old" else reference_BT
        log_ratio_BT = LEVELS[config.loss.level](logprob_BT, anchor_BT, micro.trainable_BT)
        loss_BT = self._surrogate(log_ratio_BT, logprob_BT, micro.advantage_BT, config.loss)
        if config.loss.tis_cap:
            loss_BT = loss_BT * truncated_importance(old_BT, micro.generated_BT, config.loss)
        loss = masked_sum(loss_BT, weight_BT)
        sums.policy_loss += loss.detach()
        if config.loss.entropy:
            bonus = config.loss.entropy * masked_sum(entropy_BT, weight_BT)
            loss = loss - bonus
            sums.bonus += bonus.detach()
        if reference_BT is not None and full_BT is not None:
            kl_BT = divergence(
                logprob_BT,
                old_BT,
                reference_BT,
                config.kl,
                importance=config.kl_importance,
                full_BT=full_BT,
            )
            kl_loss = masked_sum(kl_BT, weight_BT)
            loss = loss + self._loss_beta() * kl_loss
            sums.kl_loss += kl_loss.detach()
            sums.kl += masked_sum(full_BT.detach(), micro.trainable_BT)
            sums.k3 += masked_sum(k3(logprob_BT, reference_BT).detach(), micro.trainable_BT)
        if self.token_values is not None:
            self.token_values.add(micro, log_ratio_BT, entropy_BT)
        with torch.no_grad():
            sums.tokens += micro.trainable_BT.sum()
            sums.attempts += sum(row.first and any(row.segment.trainable) for row in micro.rows)
            sums.gap += masked_sum((old_BT - micro.generated_BT).abs(), micro.trainable_BT)
            sums.entropy += masked_sum(entropy_BT, micro.trainable_BT)
            sums.logprob += masked_sum(logprob_BT, micro.trainable_BT)
            sums.clipped += masked_sum(
                clipped(log_ratio_BT, micro.advantage_BT, config.loss), micro.trainable_BT
            )
            if config.loss.tis_cap:
                sums.truncated += masked_sum(
                    truncated(old_BT, micro.generated_BT, config.loss), micro.trainable_BT
                )
        return loss, old_BT

    def _optimizer_step(
        self,
        micros: Sequence[MicroBatch],
        old: Sequence[Tensor | None],
        reference: Sequence[ReferenceStates | None],
    ) -> tuple[dict[str, float], list[Tensor | None]]:
        """Make one optimizer step, or skip it if loss or gradient is not finite.

        Args:
            micros: the micro-batches of the step.
            old: for each, log-probs of the policy that sampled; None if that is the present policy.
            reference: for each, what the reference computed for it, if there is one.

        Returns:
            The metrics of the step, and the log-probs of the policy that sampled.
        """
        sums = self._no_sums()
        old_logprobs: list[Tensor | None] = []
        scaler = self.accelerator.scaler
        self.optimizer.zero_grad()
        # Float16's scaler is initialised when it scales its first loss.
        if not micros and scaler is not None:
            scaler.scale(torch.zeros((), device=self.policy.device))
        for micro, old_BT, states in zip(micros, old, reference, strict=True):
            loss, used_old_BT = self.loss(micro, old_BT, states, sums)
            # The gradients of sharded weights are averaged over the processes; their sum is needed.
            self.accelerator.backward(loss * self._ranks.size if self.policy.sharded else loss)
            del loss  # the rest of its graph would fragment the memory that the next one needs
            old_logprobs.append(used_old_BT)
        for parameter in self.parameters:
            # Without rows the optimizer still steps by its momentum, as with a gradient of 0.
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        if self._ranks.size > 1:
            # Row weights are those of the whole step, so the sums need no rescaling.
            sums.sum_over_ranks(self._ranks)
            if not self.policy.sharded:
                self._ranks.add(
                    [parameter.grad for parameter in self.parameters if parameter.grad is not None]
                )
        norm = float(
            gather_full(
                self.accelerator.clip_grad_norm_(
                    self.parameters, self.config.optimizer.max_grad_norm
                )
            )
        )
        values = {**sums.means(self._loss_beta()), "grad_norm": norm, "lr": self._rate()}
        # An infinite gradient may only mean that float16's scale is too large. The scaler then
        # skips the step by itself and lowers the scale.
        scaler_adjusts = scaler is not None and scaler.get_scale() > 1
        if math.isfinite(values["loss"]) and (math.isfinite(norm) or scaler_adjusts):
            self.optimizer.step()
            self.steps += 1
            self.skipped_in_a_row = 0
        else:
            self._skip(values["loss"], norm)
        return values, old_logprobs

    def _skip(self, loss: float, norm: float) -> None:
        """Skip the optimizer step.

        Raises:
            RunStoppedError: this happened in MAX_NONFINITE steps in a row.
        """
        self.optimizer.zero_grad()
        if self.accelerator.scaler is not None:
            self.accelerator.scaler.update()  # resets the record that the gradients were unscaled
        self.skipped += 1
        self.skipped_in_a_row += 1
        if self.skipped_in_a_row >= MAX_NONFINITE:
            raise RunStoppedError(
                f"loss or gradient was not finite in {MAX_NONFINITE} optimizer steps in a row "
                f"(loss {loss}, gradient norm {norm}); lower optimizer.lr, or use --dtype float32"
            )

    @property
    def only_advantages(self) -> bool:
        """Return True if a completion with an advantage of 0 adds nothing to the loss.

        It then need not be computed.
        """
        return (
            self._loss_beta() == 0
            and not self.config.loss.entropy
            and not self.config.loss.name.startswith(PLUGIN)
        )

    def _no_sums(self) -> Sums:
        """Return the totals before the first micro-batch."""
        without_reference = 0.0 if self.config.needs_reference else math.nan
        return Sums(
            kl=without_reference,
            k3=without_reference,
            truncated=0.0 if self.config.loss.tis_cap else math.nan,
        )

    def _loss_beta(self) -> float:
        """Return the weight of the KL in the loss; 0 if it is in the reward."""
        return self.beta if self.config.kl.placement == "loss" else 0.0

    def _advance(self) -> None:
        """Advance the schedule by one optimizer step, also past a skipped one.

        torch warns about skipped steps, since it assumes that they were forgotten.
        """
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
            self.schedule.step()

    def _rate(self) -> float:
        """Return the present learning rate."""
        return float(self.schedule.get_last_lr()[0])

    def _empty_passes(self, count: int) -> list[MicroBatch]:
        """Return what a process with `count` passes computes while others have more to do."""
        return list(self._make_micros([EMPTY_ROW])) * (
            max(self._ranks.gather_values(count)) - count
        )

    @torch.no_grad()
    def _present_logprobs(self, micro: MicroBatch) -> Tensor:
        """Return log-probs (B, T) under the present policy."""
        return self.policy.logprobs(micro, temperature=self.config.sampling.temperature)[0]

    def _reference_states(self, micro: MicroBatch) -> ReferenceStates | None:
        """Return what the reference computes for a micro-batch; None if it is not needed."""
        return self.policy.reference_states(micro) if self.config.needs_reference else None


def _mean_of_measured(values: Sequence[float]) -> float:
    """Return the mean of the values that are not NaN; NaN if there is none."""
    measured = [value for value in values if not math.isnan(value)]
    return sum(measured) / len(measured) if measured else math.nan
