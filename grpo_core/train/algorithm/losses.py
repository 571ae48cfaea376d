"""Compute the loss by pure tensor functions: ratios, surrogates, KL estimators, aggregation.

Advantages are in `advantages.py`. Axes: B rows (completions), T completion tokens. Formulas are
those of DeepSeekMath, arXiv 2402.03300, where no other source is named. Where implementations
differ, the function states which convention it follows. `logprob` is l = log pi(token), with its
gradient; `anchor` is the log-prob that a ratio compares it with: that of the policy that sampled,
or of the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from grpo_core.config.settings import KLConfig, LossConfig

# --- ratio levels: (logprob_BT, anchor_BT, trainable_BT) -> log_ratio_BT. At the sequence levels
# every token of a row has the ratio of the row. While the policy is the one that sampled, the
# gradient of a surrogate is that of the expected reward with sequence_sum (at the level `sequence`
# with sequence_mean, where each token brings the gradient of its row). Later only `sequence` keeps
# it, in `clip` while nothing is clipped, and in `cispo` with sequence_sum.


def token(logprob_BT: Tensor, anchor_BT: Tensor, trainable_BT: Tensor) -> Tensor:
    """Return l - anchor for each token by itself."""
    return logprob_BT - anchor_BT


def sequence_mean(logprob_BT: Tensor, anchor_BT: Tensor, trainable_BT: Tensor) -> Tensor:
    """Return the mean of l - anchor over the tokens of the row (GSPO, arXiv 2507.18071).

    Under every aggregation its gradient is that of GSPO's token form, sg[log s] + l - sg[l].
    """
    return _row_sum(logprob_BT - anchor_BT, trainable_BT) / trainable_BT.sum(
        dim=1, keepdim=True
    ).clamp(min=1)


def sequence(logprob_BT: Tensor, anchor_BT: Tensor, trainable_BT: Tensor) -> Tensor:
    """Return the sum of l - anchor over the tokens of the row: the log-ratio of completions."""
    return _row_sum(logprob_BT - anchor_BT, trainable_BT)


def _row_sum(values_BT: Tensor, trainable_BT: Tensor) -> Tensor:
    """Return the sum over the trainable tokens of each row, repeated for each of its tokens."""
    return (
        torch.where(trainable_BT != 0, values_BT, 0.0).sum(dim=1, keepdim=True).expand_as(values_BT)
    )


LEVELS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    function.__name__: function for function in (token, sequence_mean, sequence)
}
"""Ratio levels by the name that `loss.level` takes."""


MAX_LOG_RATIO = 20.0
"""Upper bound of a log-ratio in `ratio`."""


def ratio(log_ratio_BT: Tensor) -> Tensor:
    """Return rho = exp(log-ratio), with the logarithm bounded to 20 from above.

    Beyond the bound the ratio of a whole completion becomes infinite, and 0 times infinity NaN. The
    gradient stays that of rho at the bound, so that a completion with a negative advantage is still
    made less likely; in verl, which clamps the logarithm at 20 as well, it gets no gradient.
    """
    return (log_ratio_BT - (log_ratio_BT - MAX_LOG_RATIO).clamp(min=0).detach()).exp()


# --- surrogates: (log_ratio_BT, logprob_BT, advantage_BT, config) -> loss_BT, to be minimised.


def clip(
    log_ratio_BT: Tensor, logprob_BT: Tensor, advantage_BT: Tensor, config: LossConfig
) -> Tensor:
    """Return -min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A) (PPO, arXiv 1707.06347).

    DAPO (arXiv 2503.14476) has clip_low 0.2 and clip_high 0.28. With dual_clip = c, the loss is at
    most -c A where A < 0 (arXiv 1912.09729; verl and OpenRLHF: c = 3).
    """
    ratio_BT = ratio(log_ratio_BT)
    clipped_BT = ratio_BT.clamp(1 - config.clip_low, 1 + config.clip_high)
    loss_BT = -torch.minimum(ratio_BT * advantage_BT, clipped_BT * advantage_BT)
    if config.dual_clip is None:
        return loss_BT
    return torch.where(
        advantage_BT < 0, torch.minimum(loss_BT, -config.dual_clip * advantage_BT), loss_BT
    )


def reinforce(
    log_ratio_BT: Tensor, logprob_BT: Tensor, advantage_BT: Tensor, config: LossConfig
) -> Tensor:
    """Return -A l: the plain policy gradient, without a ratio."""
    return -advantage_BT * logprob_BT


def cispo(
    log_ratio_BT: Tensor, logprob_BT: Tensor, advantage_BT: Tensor, config: LossConfig
) -> Tensor:
    """Return -sg(clip(rho, 1 - clip_low, 1 + clip_high)) A l (CISPO, arXiv 2506.13585).

    verl and slime clamp in the same way; TRL clamps at clip_high without the 1.
    """
    weight_BT = log_ratio_BT.exp().clamp(1 - config.clip_low, 1 + config.clip_high).detach()
    return -weight_BT * advantage_BT * logprob_BT


def sapo(
    log_ratio_BT: Tensor, logprob_BT: Tensor, advantage_BT: Tensor, config: LossConfig
) -> Tensor:
    """Return -(4 / tau) sigmoid(tau (rho - 1)) A.

    One tau holds for A > 0 and another for the rest (TRL, verl: 1.0 and 1.05).
    """
    tau_BT = torch.full_like(advantage_BT, config.sapo_negative).masked_fill(
        advantage_BT > 0, config.sapo_positive
    )
    return -4 / tau_BT * torch.sigmoid(tau_BT * (ratio(log_ratio_BT) - 1)) * advantage_BT


Surrogate = Callable[[Tensor, Tensor, Tensor, LossConfig], Tensor]
"""Signature of a surrogate: (log_ratio_BT, logprob_BT, advantage_BT, config) -> loss_BT."""
SURROGATES: dict[str, Surrogate] = {
    function.__name__: function for function in (clip, reinforce, cispo, sapo)
}
"""Built-in surrogates by the name that `loss.name` takes."""


def clipped(log_ratio_BT: Tensor, advantage_BT: Tensor, config: LossConfig) -> Tensor:
    """Return True (B, T) where the clipping of PPO removes the gradient, whatever the surrogate.

    That is where the ratio has left the trust region on the side that the advantage pushes towards.
    """
    ratio_BT = log_ratio_BT.exp()
    over_BT = (ratio_BT > 1 + config.clip_high) & (advantage_BT > 0)
    under_BT = (ratio_BT < 1 - config.clip_low) & (advantage_BT < 0)
    return over_BT | under_BT


def truncated_importance(old_BT: Tensor, generated_BT: Tensor, config: LossConfig) -> Tensor:
    """Return sg(clip(exp(old - generated), tis_floor, tis_cap)): a weight for each token (B, T).

    `old` is the policy before the update, recomputed, and `generated` what sampled. The weight
    corrects for tokens that were sampled by another engine than the one that trains, or by older
    weights; the ratio of the surrogate begins at 1 all the same.
    """
    return (old_BT - generated_BT).exp().clamp(config.tis_floor, config.tis_cap).detach()


def truncated(old_BT: Tensor, generated_BT: Tensor, config: LossConfig) -> Tensor:
    """Return True (B, T) where `truncated_importance` is not the plain ratio."""
    plain_BT = (old_BT - generated_BT).exp()
    return plain_BT != truncated_importance(old_BT, generated_BT, config)


# --- KL to the reference, per token, with d = logprob - reference (Schulman, "Approximating KL
# divergence"). Expectations are over tokens that the present policy draws, at prefixes that were
# drawn: no gradient here includes how a token changes the prefixes that come after it.
# `python tests/train/test_expectations.py` prints what each estimator is on average.


def k1(logprob_BT: Tensor, reference_BT: Tensor) -> Tensor:
    """Return d: unbiased as a value; as a loss its expected gradient is zero, or with an importance
    ratio that of the KL.

    It is the only estimator for a KL in the reward: there the others' expected gradient is not that
    of the KL, and near the reference that of k3 vanishes.
    """
    return logprob_BT - reference_BT


def k2(logprob_BT: Tensor, reference_BT: Tensor) -> Tensor:
    """Return d^2 / 2: biased as a value, with the expected gradient of the KL."""
    return (logprob_BT - reference_BT) ** 2 / 2


def k3(logprob_BT: Tensor, reference_BT: Tensor) -> Tensor:
    """Return exp(-d) + d - 1: unbiased as a value and never negative.

    Its expected gradient is that of the forward KL, or with an importance ratio that of the KL.
    """
    difference_BT = logprob_BT - reference_BT
    return torch.exp(-difference_BT) + difference_BT - 1


def k3_reverse(logprob_BT: Tensor, reference_BT: Tensor) -> Tensor:
    """Return exp(d) - d - 1: k3 with the sign of d reversed.

    It is unbiased for samples of the reference, not of the policy: here neither its value nor its
    gradient is the KL's.
    """
    return k3(reference_BT, logprob_BT)


def k3_st(logprob_BT: Tensor, reference_BT: Tensor) -> Tensor:
    """Return the value of k3 with the gradient of k2 ("straight through").

    The gradient of k3 itself is that of the forward KL, with weights exp(-d): a single sampled
    token to which the policy now gives almost no probability can outweigh all rewards of a batch.
    The gradient of k2 is that of the KL from the policy to the reference, with weights d.
    """
    squared_BT = k2(logprob_BT, reference_BT)
    return squared_BT - squared_BT.detach() + k3(logprob_BT, reference_BT).detach()


KL_ESTIMATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    function.__name__: function for function in (k1, k2, k3, k3_reverse, k3_st)
}
"""KL estimators by the name that `kl.estimator` takes."""


FULL = "full"
"""Name of the KL over the whole vocabulary: no estimate, but computed from the distributions that
tokens were drawn from, so that no rare token can outweigh others. Value and gradient are exact at
the prefixes that were drawn, whoever drew them."""


DESCENDING = frozenset({"k2", "k3_st"})
"""KL estimators whose gradient is that of the KL though their value or its gradient is not; an
importance ratio weights it from outside."""


def divergence(
    logprob_BT: Tensor,
    old_BT: Tensor,
    reference_BT: Tensor,
    config: KLConfig,
    *,
    importance: bool,
    full_BT: Tensor | None = None,
) -> Tensor:
    """Return the configured KL for each token (B, T): an estimate, or `full_BT` itself.

    With `importance` it is weighted by rho = exp(l - old), so that expectations over the tokens of
    the policy that sampled are those over the present policy's. k1, k3 and k3_reverse are
    multiplied by rho with its gradient, which gives rho d for k1 (plus rho, which is 0 on average)
    and for k3. k2 and k3_st, whose own gradient is d, are weighted by rho as a constant: with its
    gradient, rho times k3_st would get rho (k3 + d). The weight is that of a token and not of the
    tokens before it: how often a prefix was met is left to the policy that sampled.

    Args:
        logprob_BT: log-probs under the present policy.
        old_BT: those under the policy that sampled.
        reference_BT: those under the reference.
        config: names the estimator.
        importance: whether estimates are weighted.
        full_BT: KL over the whole vocabulary, which the estimator `full` needs and nothing weights.

    Raises:
        ValueError: it is needed and not given.
    """
    if config.estimator == FULL:
        if full_BT is None:
            raise ValueError("kl.estimator=full needs the KL over the whole vocabulary, full_BT")
        return full_BT
    kl_BT = KL_ESTIMATORS[config.estimator](logprob_BT, reference_BT)
    if not importance:
        return kl_BT
    ratio_BT = (logprob_BT - old_BT).exp()
    return (ratio_BT.detach() if config.estimator in DESCENDING else ratio_BT) * kl_BT


def adapted(beta: float, kl: float, attempts: int, config: KLConfig) -> float:
    """Return the next beta of the adaptive KL controller (Ziegler et al., arXiv 1909.08593).

    It is beta (1 + clip(KL / target - 1, -0.2, 0.2) min(1, attempts / horizon)), or beta without a
    target. The bound is ours: with more than five horizons in a step the sign of beta would change.

    Args:
        beta: the present weight of the KL.
        kl: the measured KL per token.
        attempts: completions of the step.
        config: sets target and horizon.
    """
    if config.target is None:
        return beta
    error = min(0.2, max(-0.2, kl / config.target - 1))
    return beta * (1 + error * min(1, attempts / config.horizon))


# --- aggregation: the weight of each token of a row, so that a loss is the plain sum of weight *
# token loss over all rows of the optimizer step. It is fixed before the first backward pass, so
# micro-batches, order, padding and processes cannot change it.


def average_sequences(lengths: Sequence[int], max_length: int) -> list[float]:
    """Average over the tokens of each row, then over the rows, as GRPO does."""
    return [1 / (len(lengths) * max(length, 1)) for length in lengths]


def average_tokens(lengths: Sequence[int], max_length: int) -> list[float]:
    """Average over all tokens of the step (DAPO, arXiv 2503.14476)."""
    return [1 / max(sum(lengths), 1)] * len(lengths)


def sum_sequences(lengths: Sequence[int], max_length: int) -> list[float]:
    """Sum over the tokens of each row, then average over the rows."""
    return [1 / len(lengths)] * len(lengths)


def divide_by_budget(lengths: Sequence[int], max_length: int) -> list[float]:
    """Divide the sum over all tokens by a constant (Dr. GRPO, arXiv 2503.20783)."""
    return [1 / (len(lengths) * max_length)] * len(lengths)


Aggregation = Callable[[Sequence[int], int], list[float]]
"""Signature of an aggregation: (lengths, max_length) -> the weight of each token's loss, per row.

`lengths` holds the trainable tokens of each row that counts: an empty completion counts with loss
0, and unscored rows are not included. `max_length` is the configured budget in tokens, never the
padded width.
"""
AGGREGATIONS: dict[str, Aggregation] = {
    "sequence_mean": average_sequences,
    "token_mean": average_tokens,
    "sequence_sum": sum_sequences,
    "constant": divide_by_budget,
}
"""Aggregations by the name that `loss.aggregation` takes."""
