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


def token_logprobs(logits_KV: Tensor, place_M: Tensor, tokens_M: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probs (M,) of `tokens_M` and the entropies (M,) of their distributions, in few passes over the vocabulary.

    place_M: which of the K distributions each token was drawn from; several tokens may share one.
    """
    logprob_M, entropy_K = _TokenLogprobs.apply(logits_KV, place_M, tokens_M)  # type: ignore[no-untyped-call]
    return logprob_M, entropy_K[place_M]


class _TokenLogprobs(torch.autograd.Function):
    """Keeps one tensor of probabilities and makes the gradient of it; autograd over logsumexp and gather would keep and fill four."""

    @staticmethod
    def forward(ctx: Any, logits_KV: Tensor, place_M: Tensor, tokens_M: Tensor) -> tuple[Tensor, Tensor]:
        highest_K1 = logits_KV.amax(dim=-1, keepdim=True)
        probs_KV = (logits_KV - highest_K1).exp_()
        total_K1 = probs_KV.sum(dim=-1, keepdim=True)
        norm_K = (total_K1.log() + highest_K1).squeeze(-1)
        probs_KV.div_(total_K1)
        entropy_K = norm_K - torch.linalg.vecdot(probs_KV, logits_KV.clamp(min=torch.finfo(logits_KV.dtype).min))  # 0 * -inf is 0 here
        ctx.save_for_backward(probs_KV, entropy_K, place_M, tokens_M)
        ctx.set_materialize_grads(False)  # an entropy that only goes into the log costs no backward pass
        return logits_KV[place_M, tokens_M] - norm_K[place_M], entropy_K

    @staticmethod
    def backward(ctx: Any, grad_M: Tensor | None, entropy_grad_K: Tensor | None) -> tuple[Tensor, None, None]:
        """d logprob / d logits = onehot(token) - probs, summed over the tokens of a distribution; d entropy / d logits =
        -probs (log probs + entropy)."""
        probs_KV, entropy_K, place_M, tokens_M = ctx.saved_tensors
        gradient_KV = torch.zeros_like(probs_KV)
        if grad_M is not None:
            grad_K = torch.zeros(probs_KV.shape[0], dtype=grad_M.dtype, device=grad_M.device).index_add_(0, place_M, grad_M)
            gradient_KV = probs_KV * -grad_K.unsqueeze(-1)
            gradient_KV.index_put_((place_M, tokens_M), grad_M, accumulate=True)
        if entropy_grad_K is not None:
            surprise_KV = torch.special.xlogy(probs_KV, probs_KV) + probs_KV * entropy_K.unsqueeze(-1)
            gradient_KV -= surprise_KV * entropy_grad_K.unsqueeze(-1)
        return gradient_KV, None, None
