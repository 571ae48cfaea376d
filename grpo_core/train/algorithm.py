"""GRPO as pure tensor functions, one each: advantages, policy surrogates, KL estimators, aggregation.

Axes: P prompts, G attempts of a prompt, B rows (B = P * G), T completion tokens. Formulas: DeepSeekMath, arXiv 2402.03300, where no
other source is named. Conventions that differ in the wild are said where they are decided.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from grpo_core.config import AdvantageConfig, LossConfig

# --- advantages: (reward_PG, scored_PG, config) -> advantage_PG in float64; unscored attempts get 0 and touch no statistic.
# gdpo alone asks for the parts that the rewards are the sum of.


def grpo(reward_PG: Tensor, scored_PG: Tensor, config: AdvantageConfig) -> Tensor:
    """A = (r - mean) / (std + eps) over the scored attempts of a group.

    ddof 0 and eps 1e-6 by default (TRL: ddof 1, 1e-4; verl: ddof 1, 1e-6). A group whose rewards are all equal gets exactly 0, which
    the formula alone does not give in floating point; so does a group with fewer than two scored attempts.
    """
    centred_PG, count_P = _centred(reward_PG, scored_PG)
    degrees_P = (count_P - config.ddof).clamp(min=1)
    std_P = ((centred_PG**2).sum(dim=1) / degrees_P).sqrt()
    return torch.where(centred_PG == 0, 0.0, centred_PG / (std_P + config.eps).unsqueeze(1))


def mean_only(reward_PG: Tensor, scored_PG: Tensor, config: AdvantageConfig) -> Tensor:
    """A = r - mean over the scored attempts of a group (Dr. GRPO, arXiv 2503.20783)."""
    return _centred(reward_PG, scored_PG)[0]


def _centred(reward_PG: Tensor, scored_PG: Tensor) -> tuple[Tensor, Tensor]:
    """Rewards minus their group's mean, exactly 0 where unscored, where all are equal and where fewer than two are scored; counts (P,)."""
    reward_PG, scored_PG = reward_PG.double(), scored_PG.bool()
    count_P = scored_PG.sum(dim=1)
    kept_PG = torch.where(scored_PG, reward_PG, 0.0)
    mean_P = kept_PG.sum(dim=1) / count_P.clamp(min=1)
    highest_P = torch.where(scored_PG, reward_PG, -torch.inf).amax(dim=1)
    lowest_P = torch.where(scored_PG, reward_PG, torch.inf).amin(dim=1)
    live_PG = scored_PG & ((count_P >= 2) & (highest_P > lowest_P)).unsqueeze(1)
    return torch.where(live_PG, reward_PG - mean_P.unsqueeze(1), 0.0), count_P


def gdpo(part_KPG: Tensor, weight_KP: Tensor, scored_PG: Tensor, config: AdvantageConfig) -> Tensor:
    """sum_k weight_k * (part_k - mean) / (std + eps), divided by the standard deviation of the batch (GDPO, arXiv 2601.05242).

    Each part is normalised within its group by itself, so a group that differs in a detail is pushed by the detail's weight; grpo pushes
    it as hard as one that differs in what counts. The mean over the batch is 0 already, since it is 0 in every group.
    """
    sum_PG = torch.zeros_like(part_KPG[0], dtype=torch.float64) if len(part_KPG) else scored_PG.double() * 0
    for part_PG, weight_P in zip(part_KPG, weight_KP, strict=True):
        sum_PG += weight_P.double().unsqueeze(1) * grpo(part_PG, scored_PG, config)
    spread = sum_PG[scored_PG].std(correction=0) if scored_PG.any() else sum_PG.new_zeros(())
    return torch.where(sum_PG == 0, 0.0, sum_PG / (spread + config.eps))


Advantage = Callable[[Tensor, Tensor, AdvantageConfig], Tensor]
ADVANTAGES: dict[str, Advantage] = {"grpo": grpo, "mean_only": mean_only}


def advantages(reward_PG: Tensor, scored_PG: Tensor, config: AdvantageConfig, *, parts: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """The configured estimator, then the configured clip. parts: value (K, P, G) and weight (K, P) of the parts that a reward is the sum
    of; left out, it has one."""
    if config.name == "gdpo":
        part_KPG, weight_KP = (reward_PG.unsqueeze(0), torch.ones(1, len(reward_PG))) if parts is None else parts
        advantage_PG = gdpo(part_KPG, weight_KP, scored_PG, config)
    else:
        advantage_PG = ADVANTAGES[config.name](reward_PG, scored_PG, config)
    return advantage_PG if config.clip is None else advantage_PG.clamp(-config.clip, config.clip)


# --- surrogates: (logprob_BT, old_BT, advantage_B1, config) -> loss_BT, to be minimised.


def clip(logprob_BT: Tensor, old_BT: Tensor, advantage_B1: Tensor, config: LossConfig) -> Tensor:
    """-min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A) with rho = exp(logprob - old) (PPO, arXiv 1707.06347)."""
    ratio_BT = (logprob_BT - old_BT).exp()
    clipped_BT = ratio_BT.clamp(1 - config.clip_low, 1 + config.clip_high)
    return -torch.minimum(ratio_BT * advantage_B1, clipped_BT * advantage_B1)


def reinforce(logprob_BT: Tensor, old_BT: Tensor, advantage_B1: Tensor, config: LossConfig) -> Tensor:
    """-A log pi: the plain policy gradient, without a ratio."""
    return -advantage_B1 * logprob_BT


Surrogate = Callable[[Tensor, Tensor, Tensor, LossConfig], Tensor]
SURROGATES: dict[str, Surrogate] = {"clip": clip, "reinforce": reinforce}


def clipped(logprob_BT: Tensor, old_BT: Tensor, advantage_B1: Tensor, config: LossConfig) -> Tensor:
    """Where the clip takes the gradient away: the ratio has left the trust region on the side that the advantage pushes to."""
    ratio_BT = (logprob_BT - old_BT).exp()
    over_BT = (ratio_BT > 1 + config.clip_high) & (advantage_B1 > 0)
    under_BT = (ratio_BT < 1 - config.clip_low) & (advantage_B1 < 0)
    return over_BT | under_BT


# --- KL to the reference, per token, with d = logprob - reference (Schulman, "Approximating KL divergence").


def k1(logprob_BT: Tensor, reference_BT: Tensor) -> Tensor:
    """d: unbiased as a value; as a loss its expected gradient is zero."""
    return logprob_BT - reference_BT


def k2(logprob_BT: Tensor, reference_BT: Tensor) -> Tensor:
    """d^2 / 2: biased as a value, with the gradient of the KL."""
    return (logprob_BT - reference_BT) ** 2 / 2


def k3(logprob_BT: Tensor, reference_BT: Tensor) -> Tensor:
    """exp(-d) + d - 1: unbiased and never negative."""
    difference_BT = logprob_BT - reference_BT
    return torch.exp(-difference_BT) + difference_BT - 1


def k3_st(logprob_BT: Tensor, reference_BT: Tensor) -> Tensor:
    """k3's value with k2's gradient, "straight through".

    k3's own gradient is that of the forward KL, with weights exp(-d): a token that the policy has nearly given up, drawn once, can
    outweigh all rewards of a batch. k2's is that of the KL from the policy to the reference, with weights d.
    """
    squared_BT = k2(logprob_BT, reference_BT)
    return squared_BT - squared_BT.detach() + k3(logprob_BT, reference_BT).detach()


KL_ESTIMATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3, "k3_st": k3_st}


# --- aggregation: the weight of each token of a row, so that a loss is the plain sum of weight * token loss over all rows of the
# optimizer step. It is fixed before the first backward pass, so micro-batches, order, padding and processes cannot change it.


def row_weights(lengths: Sequence[int], aggregation: str, *, max_length: int) -> list[float]:
    """Per-row token weights for the rows of one optimizer step.

    lengths: trainable tokens of each row that counts (an empty completion counts in B with loss 0; unscored rows are not given).
    max_length: the configured generation budget, for `constant`; never the padded width.
    """
    rows, tokens = len(lengths), sum(lengths)
    if aggregation == "sequence_mean":
        return [1 / (rows * max(n, 1)) for n in lengths]
    if aggregation == "token_mean":  # DAPO, arXiv 2503.14476
        return [1 / max(tokens, 1)] * rows
    if aggregation == "sequence_sum":
        return [1 / rows] * rows
    if aggregation == "constant":  # Dr. GRPO, arXiv 2503.20783
        return [1 / (rows * max_length)] * rows
    raise ValueError(f"unknown aggregation {aggregation!r}")
