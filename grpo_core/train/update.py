"""The update: one rollout batch, `mu` passes, `minibatches` optimizer steps a pass, micro-batches of bounded size in each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from torch import Tensor

from grpo_core.config import RunConfig
from grpo_core.errors import RunStoppedError
from grpo_core.train.algorithm import KL_ESTIMATORS, SURROGATES, clipped
from grpo_core.train.batch import MicroBatch, Row, micro_batches
from grpo_core.train.optimizer import build_optimizer, build_schedule
from grpo_core.train.policy import Policy

MAX_NONFINITE = 3


@dataclass(slots=True)
class Sums:
    """Totals over the micro-batches of one optimizer step; the token counts make token means of them."""

    policy_loss: float = 0.0
    kl_loss: float = 0.0
    kl: float = 0.0
    entropy: float = 0.0
    logprob: float = 0.0
    clipped: float = 0.0
    tokens: int = 0

    def means(self, beta: float) -> dict[str, float]:
        tokens = max(self.tokens, 1)
        penalty = beta * self.kl_loss
        return {
            "loss": self.policy_loss + penalty,
            "policy_loss": self.policy_loss,
            "kl": self.kl / tokens,
            "kl_penalty": penalty,
            "entropy": self.entropy / tokens,
            "logprob/mean": self.logprob / tokens,
            "clip_fraction": self.clipped / tokens,
        }


class Updater:
    """Turns rows into optimizer steps. skipped: steps left out because loss or gradient was not finite."""

    def __init__(self, policy: Policy, config: RunConfig, *, steps: int) -> None:
        self.policy = policy
        self.config = config
        # Only float16 needs accelerate's gradient scaler; which type the forward pass computes in is the policy's affair.
        precision = "fp16" if policy.compute_dtype == torch.float16 else "no"
        self.accelerator = Accelerator(cpu=policy.device.type == "cpu", mixed_precision=precision)
        self.parameters = [p for _, p in policy.trainable()]
        per_batch = config.trainer.mu * config.trainer.minibatches
        self.optimizer = self.accelerator.prepare(build_optimizer(self.parameters, config.optimizer))
        self.schedule = build_schedule(self.optimizer.optimizer, config.schedule, total=steps * per_batch)
        # With one optimizer step per rollout batch the policy still is the one that sampled: l_old is l itself, without a forward pass.
        self.on_policy = per_batch == 1
        self.skipped = 0
        self.skipped_in_a_row = 0

    def update(self, steps: Sequence[Sequence[Row]]) -> dict[str, float]:
        """Train on the rows of one rollout batch; metrics are means over its optimizer steps."""
        micros = [self._micro_batches(rows) for rows in steps]
        old = None if self.on_policy else [[self._old(m) for m in step] for step in micros]
        reference = [[self._reference(m) for m in step] for step in micros]
        history: list[dict[str, float]] = []
        for _ in range(self.config.trainer.mu):
            for i, step in enumerate(micros):
                history.append(self._optimizer_step(step, [None] * len(step) if old is None else old[i], reference[i]))
        if not history:  # nothing could be judged: no step, but the same names in the log
            return {**Sums().means(self.config.kl.beta), "grad_norm": 0.0, "lr": float(self.schedule.get_last_lr()[0])}
        return {name: sum(h[name] for h in history) / len(history) for name in history[0]}

    def loss(self, micro: MicroBatch, old_BT: Tensor | None, reference_BT: Tensor | None, sums: Sums) -> Tensor:
        """The micro-batch's share of the loss of its optimizer step; adds what it saw to `sums`."""
        config = self.config
        logprob_BT, entropy_BT = self.policy.logprobs(micro, temperature=config.sampling.temperature)
        old_BT = logprob_BT.detach() if old_BT is None else old_BT
        weight_BT = micro.weight_B1 * micro.trainable_BT
        loss_BT = SURROGATES[config.loss.name](logprob_BT, old_BT, micro.advantage_B1, config.loss)
        policy_loss = _masked_sum(loss_BT, weight_BT)
        loss = policy_loss
        with torch.no_grad():
            sums.policy_loss += policy_loss.item()
            sums.tokens += int(micro.trainable_BT.sum())
            sums.entropy += _masked_sum(entropy_BT, micro.trainable_BT).item()
            sums.logprob += _masked_sum(logprob_BT, micro.trainable_BT).item()
            sums.clipped += _masked_sum(clipped(logprob_BT, old_BT, micro.advantage_B1, config.loss), micro.trainable_BT).item()
        if reference_BT is not None:
            kl_BT = KL_ESTIMATORS[config.kl.estimator](logprob_BT, reference_BT)
            kl_loss = _masked_sum(kl_BT, weight_BT)
            loss = loss + config.kl.beta * kl_loss
            sums.kl_loss += kl_loss.item()
            sums.kl += _masked_sum(kl_BT.detach(), micro.trainable_BT).item()
        return loss

    def _optimizer_step(
        self, micros: Sequence[MicroBatch], old: Sequence[Tensor | None], reference: Sequence[Tensor | None]
    ) -> dict[str, float]:
        sums = Sums()
        self.optimizer.zero_grad()
        for micro, old_BT, reference_BT in zip(micros, old, reference, strict=True):
            self.accelerator.backward(self.loss(micro, old_BT, reference_BT, sums))
        norm = float(self.accelerator.clip_grad_norm_(self.parameters, self.config.optimizer.max_grad_norm))
        values = {**sums.means(self.config.kl.beta), "grad_norm": norm, "lr": float(self.schedule.get_last_lr()[0])}
        if all(map(_finite, (values["loss"], norm))):
            self.optimizer.step()
            self.skipped_in_a_row = 0
        else:
            self._skip(values["loss"], norm)
            values = {name: value if _finite(value) else 0.0 for name, value in values.items()}
        self.schedule.step()
        return values

    def _skip(self, loss: float, norm: float) -> None:
        self.optimizer.zero_grad()
        self.skipped += 1
        self.skipped_in_a_row += 1
        if self.skipped_in_a_row >= MAX_NONFINITE:
            raise RunStoppedError(
                f"loss or gradient was not finite in {MAX_NONFINITE} optimizer steps in a row (loss {loss}, gradient norm {norm}); "
                "lower optimizer.lr, or use --dtype float32"
            )

    def _micro_batches(self, rows: Sequence[Row]) -> list[MicroBatch]:
        dtype = torch.float64 if next(iter(self.parameters)).dtype == torch.float64 else torch.float32
        most, policy = self.config.trainer.micro_batch_tokens, self.policy
        return list(micro_batches(rows, max_tokens=most, device=policy.device, dtype=dtype, shared_prefix=policy.shared_prefix))

    @torch.no_grad()
    def _old(self, micro: MicroBatch) -> Tensor:
        return self.policy.logprobs(micro, temperature=self.config.sampling.temperature)[0]

    def _reference(self, micro: MicroBatch) -> Tensor | None:
        if self.config.kl.beta == 0:
            return None
        return self.policy.reference_logprobs(micro, temperature=self.config.sampling.temperature)


def _finite(value: float) -> bool:
    return value == value and abs(value) != float("inf")


def _masked_sum(values_BT: Tensor, weight_BT: Tensor) -> Tensor:
    """Sum of weight * value; padding may hold anything, also inf, and contributes neither value nor gradient."""
    return (torch.where(weight_BT != 0, values_BT.to(torch.promote_types(values_BT.dtype, torch.float32)), 0.0) * weight_BT).sum()
