"""From logits to the log-prob of what was chosen: the one place that applies a temperature and normalises over the vocabulary."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def tempered(logits: Tensor, temperature: float) -> Tensor:
    """Logits at the sampling temperature, in at least float32.

    Temperature 0 (greedy) leaves them as they are: a log-prob of a greedy token is that of the plain distribution.
    """
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return logits if temperature in (0.0, 1.0) else logits / temperature


def token_logprobs(logits_BTV: Tensor, tokens_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probs (B, T) of `tokens_BT` with their gradient, and entropies (B, T) without, in few passes over the vocabulary."""
    logprob_BT, entropy_BT = _TokenLogprobs.apply(logits_BTV, tokens_BT)  # type: ignore[no-untyped-call]
    return logprob_BT, entropy_BT


class _TokenLogprobs(torch.autograd.Function):
    """Keeps one probability tensor, which becomes the gradient in place; autograd over logsumexp and gather would keep and fill four."""

    @staticmethod
    def forward(ctx: Any, logits_BTV: Tensor, tokens_BT: Tensor) -> tuple[Tensor, Tensor]:
        highest_BT1 = logits_BTV.amax(dim=-1, keepdim=True)
        probs_BTV = (logits_BTV - highest_BT1).exp_()
        total_BT1 = probs_BTV.sum(dim=-1, keepdim=True)
        norm_BT = (total_BT1.log() + highest_BT1).squeeze(-1)
        probs_BTV.div_(total_BT1)
        entropy_BT = norm_BT - torch.linalg.vecdot(probs_BTV, logits_BTV)
        chosen_BT1 = logits_BTV.gather(-1, tokens_BT.unsqueeze(-1))
        ctx.save_for_backward(probs_BTV, tokens_BT)
        ctx.mark_non_differentiable(entropy_BT)
        return chosen_BT1.squeeze(-1) - norm_BT, entropy_BT

    @staticmethod
    def backward(ctx: Any, grad_BT: Tensor, _: Tensor) -> tuple[Tensor, None]:
        """d logprob / d logits = onehot(token) - probs."""
        probs_BTV, tokens_BT = ctx.saved_tensors
        grad_BT1 = grad_BT.unsqueeze(-1)
        gradient_BTV = probs_BTV * -grad_BT1
        return gradient_BTV.scatter_add_(-1, tokens_BT.unsqueeze(-1), grad_BT1), None
