"""Sum losses and metrics over the micro-batches of an optimizer step."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from grpo_core.engine.ranks import Ranks


@dataclass(slots=True)
class Sums:
    """Hold totals over the micro-batches of one optimizer step.

    They stay on the device until the step is over. Losses are weighted sums over tokens (see
    `losses.AGGREGATIONS`); the other totals are plain sums.
    """

    policy_loss: float | Tensor = 0.0
    """Loss of the surrogate."""
    kl_loss: float | Tensor = 0.0
    """KL as it enters the loss, before its weight beta."""
    bonus: float | Tensor = 0.0
    """Entropy bonus, which is subtracted from the loss."""
    kl: float | Tensor = 0.0
    """KL of the distributions of the tokens, over the vocabulary; NaN without a reference."""
    k3: float | Tensor = 0.0
    """Its estimate k3 from the tokens alone; NaN without a reference."""
    entropy: float | Tensor = 0.0
    """Entropy of the distributions that the tokens were drawn from."""
    logprob: float | Tensor = 0.0
    """Log-prob of the tokens."""
    gap: float | Tensor = 0.0
    """Absolute difference between recomputed and sampled log-prob of the tokens."""
    clipped: float | Tensor = 0.0
    """Number of tokens whose ratio PPO clipping would stop."""
    truncated: float | Tensor = math.nan
    """Number of tokens whose importance weight was truncated; NaN if none are weighted."""
    tokens: float | Tensor = 0.0
    """Number of trainable tokens."""
    attempts: float = 0.0
    """Number of attempts with a trainable token."""

    def sum_over_ranks(self, ranks: Ranks) -> None:
        """Replace each total by its sum over all processes."""
        values_by_process = ranks.gather_values(
            [float(getattr(self, f.name)) for f in fields(self)]
        )
        for field, values in zip(fields(self), zip(*values_by_process, strict=True), strict=True):
            setattr(self, field.name, sum(values))

    def means(self, beta: float) -> dict[str, float]:
        """Return the metrics of the step, most of them means per token.

        They are NaN where nothing was measured (no token, or no reference).
        """
        tokens = float(self.tokens) or math.nan
        penalty = beta * float(self.kl_loss)
        return {
            "loss": float(self.policy_loss) + penalty - float(self.bonus),
            "policy_loss": float(self.policy_loss),
            "kl": float(self.kl) / tokens,
            "kl/k3": float(self.k3) / tokens,
            "kl/sequence": float(self.kl) / (self.attempts or math.nan),
            "kl_penalty": penalty,
            "entropy": float(self.entropy) / tokens,
            "logprob/mean": float(self.logprob) / tokens,
            "sampling/logprob_gap": float(self.gap) / tokens,
            "clip_fraction": float(self.clipped) / tokens,
            **(
                {}
                if math.isnan(self.truncated)
                else {"sampling/truncated": float(self.truncated) / tokens}
            ),
        }


def masked_sum(values_BT: Tensor, weight_BT: Tensor) -> Tensor:
    """Return the sum of weight * value.

    Values at weight 0 (padding) may be anything, also infinite, and contribute neither value nor
    gradient.
    """
    return (
        torch.where(
            weight_BT != 0, values_BT.to(torch.promote_types(values_BT.dtype, torch.float32)), 0.0
        )
        * weight_BT
    ).sum()
