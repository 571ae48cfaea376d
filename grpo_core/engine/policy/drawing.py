"""Draw tokens from logits by inverse CDF, with given uniform numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from grpo_core.engine.compute.values import tempered
from grpo_core.protocol.sampler import SamplingParams


def draw(
    logits_KV: Tensor, line_B: Tensor, uniform_B: Tensor, params: SamplingParams
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw a token for each row by inverse CDF.

    The token is the first whose cumulative probability exceeds the uniform number.

    Args:
        logits_KV: logits of K distributions.
        line_B: index of the distribution that each row draws from.
        uniform_B: uniform number in [0, 1) of each row.
        params: sampling settings.

    Returns:
        The tokens (B,), their log-probs (B,) under the full distribution at the temperature, and
        the probability mass (B,) that top-p, top-k and min-p left to draw from.
    """
    logits_KV = tempered(logits_KV, params.temperature)
    narrowed = params.top_p < 1 or params.top_k > 0 or params.min_p > 0
    highest_K1 = logits_KV.amax(dim=-1, keepdim=True)
    share_KV = (logits_KV - highest_K1).exp_()  # unnormalised probabilities
    kept_K = torch.ones_like(highest_K1[:, 0])
    if params.temperature == 0:
        norm_K = share_KV.sum(dim=-1).log() + highest_K1[:, 0]
        token_B = logits_KV.argmax(dim=-1)[line_B]
    else:
        if narrowed:
            whole_K = share_KV.sum(dim=-1)
            share_KV = narrow(share_KV.div_(whole_K.unsqueeze(-1)), params)
        cumulative_KV = share_KV.cumsum(dim=-1)
        total_K = cumulative_KV[:, -1]
        norm_K = (whole_K if narrowed else total_K).log() + highest_K1[:, 0]
        kept_K = total_K.clamp(max=1.0) if narrowed else kept_K
        # Strictly below the total, so that rounding can never choose a token of probability 0 at
        # the end of the vocabulary.
        highest_B = torch.nextafter(total_K, torch.zeros_like(total_K))[line_B]
        threshold_B = torch.minimum(
            (uniform_B * total_K[line_B].to(uniform_B.dtype)).to(total_K.dtype), highest_B
        )
        token_B = torch.searchsorted(
            cumulative_KV[line_B], threshold_B.unsqueeze(-1), right=True
        ).squeeze(-1)
        # The clamp is for logits that are NaN; the caller detects them by the log-prob.
        token_B = token_B.clamp(max=logits_KV.shape[-1] - 1)
    return token_B, logits_KV[line_B, token_B] - norm_K[line_B], kept_K[line_B]


def draw_allowed(
    logits_BV: Tensor, allowed_BV: Tensor, uniform_B: Tensor, params: SamplingParams
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw a token for each row as `draw`, among those that are allowed.

    The limits of top-p, top-k and min-p are applied to the distribution over the allowed tokens.

    Args:
        logits_BV: logits of the distribution of each row.
        allowed_BV: True where a token may be drawn; in each row at least one.
        uniform_B: uniform number in [0, 1) of each row.
        params: sampling settings.

    Returns:
        The tokens (B,), their log-probs (B,) under the full distribution at the temperature, and
        the probability mass (B,) of it that was left to draw from.
    """
    left_BV = torch.where(allowed_BV, logits_BV, -torch.inf)
    line_B = torch.arange(len(left_BV), device=left_BV.device)
    token_B, logprob_B, kept_B = draw(left_BV, line_B, uniform_B, params)
    left_B, whole_B = (
        tempered(values_BV, params.temperature).logsumexp(dim=-1)
        for values_BV in (left_BV, logits_BV)
    )
    return token_B, logprob_B + left_B - whole_B, kept_B * (left_B - whole_B).exp()


def plain_logprobs(logits_BV: Tensor, token_B: Tensor, params: SamplingParams) -> Tensor:
    """Return the log-probs (B,) of tokens (B,) under the full distribution at the temperature."""
    logprob_BV = tempered(logits_BV, params.temperature).log_softmax(dim=-1)
    return logprob_BV.gather(-1, token_B.unsqueeze(-1)).squeeze(-1)


def narrow(probs_KV: Tensor, params: SamplingParams) -> Tensor:
    """Set probabilities outside top-k, top-p and min-p to 0.

    Each limit is applied to the full distribution.

    Args:
        probs_KV: K distributions over V tokens.
        params: the limits.

    Returns:
        The remaining probabilities (K, V), not renormalised.
    """
    keep_KV = torch.ones_like(probs_KV, dtype=torch.bool)
    if 0 < params.top_k < probs_KV.shape[-1]:
        keep_KV &= probs_KV >= probs_KV.topk(params.top_k, dim=-1).values[:, -1:]
    if params.min_p > 0:
        keep_KV &= probs_KV >= params.min_p * probs_KV.amax(dim=-1, keepdim=True)
    if params.top_p < 1:
        sorted_KV, order_KV = probs_KV.sort(dim=-1, descending=True)
        before_KV = sorted_KV.cumsum(dim=-1) - sorted_KV
        keep_KV &= torch.zeros_like(keep_KV).scatter(-1, order_KV, before_KV < params.top_p)
    return torch.where(keep_KV, probs_KV, 0.0)
