"""Compute values of tokens from logits: log-probs, entropies, and the KL to a reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor


class TokenValues(NamedTuple):
    """Hold what the log needs to know of M tokens, or (B, T) of them, and of their distributions.

    The distributions are the full ones at the sampling temperature.
    """

    logprob: Tensor
    """Log-prob of the token."""
    entropy: Tensor
    """Entropy of the distribution that it was drawn from."""
    reference: Tensor | None = None
    """Log-prob of the token under the reference; None without one."""
    kl: Tensor | None = None
    """KL of the distribution to that of the reference, over the whole vocabulary."""

    def map(self, change: Callable[[Tensor], Tensor]) -> TokenValues:
        """Return the values with a function applied to each tensor."""
        reference = None if self.reference is None else change(self.reference)
        kl = None if self.kl is None else change(self.kl)
        return TokenValues(change(self.logprob), change(self.entropy), reference, kl)


def tempered(logits: Tensor, temperature: float) -> Tensor:
    """Return logits at the sampling temperature, in at least float32.

    Temperature 0 (greedy) leaves them unchanged: the log-prob of a greedy token is that of the
    plain distribution.
    """
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return logits if temperature in (0.0, 1.0) else logits / temperature


def token_values(
    logits_KV: Tensor,
    place_M: Tensor,
    tokens_M: Tensor,
    reference_logits_KV: Tensor | None = None,
) -> TokenValues:
    """Compute log-probs, entropies and KLs in few passes over the vocabulary.

    Args:
        logits_KV: logits of K distributions.
        place_M: index of the distribution that each token was drawn from; several tokens may share
            one.
        tokens_M: the tokens.
        reference_logits_KV: logits of the reference's K distributions, without a gradient;
            overwritten where they are -inf.

    Returns:
        The values (M,) of `tokens_M`, all but those of the reference with their gradients.
    """
    logprob_M, entropy_K, reference_M, kl_K = _TokenValues.apply(  # type: ignore[no-untyped-call]
        logits_KV, place_M, tokens_M, reference_logits_KV
    )
    kl_M = None if kl_K is None else kl_K[place_M]
    return TokenValues(logprob_M, entropy_K[place_M], reference_M, kl_M)


def finite(log_KV: Tensor) -> Tensor:
    """Replace -inf in place by the smallest number, so that 0 times it is 0 and no NaN."""
    return log_KV.clamp_(min=torch.finfo(log_KV.dtype).min)


def divergences(probs_KV: Tensor, difference_KV: Tensor) -> Tensor:
    """Return the KL (K,) of distributions, of which rounding makes none negative.

    Args:
        probs_KV: their probabilities p.
        difference_KV: log p - log q, where q are those of the reference.
    """
    kl_K: Tensor = torch.linalg.vecdot(probs_KV, difference_KV)
    return kl_K.clamp_(min=0)


class _TokenValues(torch.autograd.Function):
    """Compute log-probs, entropies and KLs, keeping one tensor of probabilities.

    The backward pass makes the gradient from it; autograd over logsumexp and gather would keep and
    fill four. With a reference its log-probs are kept, too.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits_KV: Tensor,
        place_M: Tensor,
        tokens_M: Tensor,
        reference_KV: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Return log-probs (M,), entropies (K,), the reference's log-probs (M,) and KLs (K,)."""
        probs_KV, norm_K1 = _normalised(logits_KV)
        finite_KV = logits_KV.clamp(min=torch.finfo(logits_KV.dtype).min)
        entropy_K = norm_K1.squeeze(-1) - torch.linalg.vecdot(probs_KV, finite_KV)
        reference_M = reference_norm_K1 = kl_K = None
        if reference_KV is not None:
            _, reference_norm_K1 = _normalised(reference_KV)
            reference_M = reference_KV[place_M, tokens_M] - reference_norm_K1[place_M, 0]
            difference_KV = finite_KV.sub_(finite(reference_KV)).sub_(norm_K1 - reference_norm_K1)
            kl_K = divergences(probs_KV, difference_KV)
            ctx.mark_non_differentiable(reference_M)
        ctx.save_for_backward(
            *(probs_KV, entropy_K, kl_K, reference_KV, reference_norm_K1, place_M, tokens_M)
        )
        ctx.set_materialize_grads(False)  # an entropy that is only logged costs no backward pass
        logprob_M = logits_KV[place_M, tokens_M] - norm_K1[place_M, 0]
        return logprob_M, entropy_K, reference_M, kl_K

    @staticmethod
    def backward(
        ctx: Any,
        grad_M: Tensor | None,
        entropy_grad_K: Tensor | None,
        _: Any,
        kl_grad_K: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        """Return the gradient of the logits.

        d logprob / d logits = onehot(token) - probs, summed over the tokens of a distribution;
        d entropy / d logits = -probs (log probs + entropy);
        d KL / d logits = probs (log probs - log reference - KL).
        """
        probs_KV, entropy_K, kl_K, reference_KV, reference_norm_K1, place_M, tokens_M = (
            ctx.saved_tensors
        )
        gradient_KV = torch.zeros_like(probs_KV)
        if grad_M is not None:
            grad_K = torch.zeros(
                probs_KV.shape[0], dtype=grad_M.dtype, device=grad_M.device
            ).index_add_(0, place_M, grad_M)
            gradient_KV = probs_KV * -grad_K.unsqueeze(-1)
            gradient_KV.index_put_((place_M, tokens_M), grad_M, accumulate=True)
        if entropy_grad_K is not None:
            weighted_KV = torch.special.xlogy(probs_KV, probs_KV) + probs_KV * entropy_K.unsqueeze(
                -1
            )
            gradient_KV -= weighted_KV * entropy_grad_K.unsqueeze(-1)
        if kl_grad_K is not None:
            moved_KV = torch.special.xlogy(probs_KV, probs_KV) - probs_KV * (
                reference_KV - reference_norm_K1 + kl_K.unsqueeze(-1)
            )
            gradient_KV += moved_KV * kl_grad_K.unsqueeze(-1)
        return gradient_KV, None, None, None


def _normalised(logits_KV: Tensor) -> tuple[Tensor, Tensor]:
    """Return the probabilities (K, V) and the logarithm (K, 1) of what they were divided by."""
    highest_K1 = logits_KV.amax(dim=-1, keepdim=True)
    probs_KV = (logits_KV - highest_K1).exp_()
    total_K1 = probs_KV.sum(dim=-1, keepdim=True)
    return probs_KV.div_(total_K1), total_K1.log() + highest_K1
