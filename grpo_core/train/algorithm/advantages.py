"""Advantage estimators as pure functions, one each: (rewards, config) -> advantage_PG.

Axes: P prompts, G attempts of a prompt, K reward parts. All in float64. Statistics run over the scored attempts of a group alone: an
unscored one gets exactly 0 and touches nothing, and so does a group with fewer than two scored attempts or with equal rewards, which
the formulas alone do not give in floating point. N: scored attempts of a group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import comb

import torch
from torch import Tensor

from grpo_core.config.settings import AdvantageConfig
from grpo_core.train.algorithm.rewards import Rewards

WHITEN_EPS = 1e-8


def grpo(rewards: Rewards, config: AdvantageConfig) -> Tensor:
    """(r - mean) / (std + eps) (DeepSeekMath, arXiv 2402.03300).

    ddof 0 and eps 1e-6 by default (TRL: ddof 1, 1e-4; verl and SkyRL: ddof 1, 1e-6; open-instruct: ddof 0, 1e-8).
    """
    centred_PG, count_P1 = _centred(rewards.total_PG, rewards.scored_PG)
    return _over(centred_PG, _spread(centred_PG, count_P1, ddof=config.ddof) + config.eps)


def mean_only(rewards: Rewards, config: AdvantageConfig) -> Tensor:
    """r - mean (Dr. GRPO, arXiv 2503.20783; prime-rl, nanochat)."""
    return _centred(rewards.total_PG, rewards.scored_PG)[0]


def rloo(rewards: Rewards, config: AdvantageConfig) -> Tensor:
    """r - mean of the others = N / (N - 1) * (r - mean) (RLOO, arXiv 2402.14740)."""
    centred_PG, count_P1 = _centred(rewards.total_PG, rewards.scored_PG)
    return centred_PG * count_P1 / (count_P1 - 1).clamp(min=1)


def maxrl(rewards: Rewards, config: AdvantageConfig) -> Tensor:
    """(r - mean) / mean, for rewards that are never negative; a mean of 0 gives 0 (prime-rl, SkyRL)."""
    mean_P1 = _mean(rewards.total_PG, rewards.scored_PG)
    centred_PG, _ = _centred(rewards.total_PG, rewards.scored_PG)
    return torch.where(
        mean_P1 > 0, centred_PG / mean_P1.clamp(min=torch.finfo(torch.float64).tiny), 0.0
    )


def best_minus_second(rewards: Rewards, config: AdvantageConfig) -> Tensor:
    """(highest - second) / (std + eps) for the best attempt, 0 for the others; ddof 1 (arXiv 2503.19595; "grpo_passk" in verl)."""
    centred_PG, count_P1 = _centred(rewards.total_PG, rewards.scored_PG)
    ranked_PG = torch.where(rewards.scored_PG, rewards.total_PG, -torch.inf)
    top_P2, place_P2 = ranked_PG.topk(2, dim=1)
    lead_P1 = torch.where(count_P1 >= 2, top_P2[:, :1] - top_P2[:, 1:], 0.0)
    best_PG = torch.zeros_like(centred_PG).scatter(1, place_P2[:, :1], lead_P1)
    return _over(best_PG, _spread(centred_PG, count_P1, ddof=1) + config.eps)


def maxk(rewards: Rewards, config: AdvantageConfig) -> Tensor:
    """Max@k for any rewards: over all subsets of k attempts, (mean of the best reward of those that hold the attempt - mean of all) /
    (std of all + eps).

    The closed form of the subset estimator of Pass@k Training (arXiv 2508.10751); k = 1 is grpo with ddof 0. A group with k or fewer
    scored attempts has one subset at most and gets 0. Tied rewards get equal advantages.
    """
    return _by_group(
        rewards,
        lambda reward_N: _maxk(reward_N, k=_k(config), eps=config.eps),
        least=_k(config) + 1,
    )


def passk(rewards: Rewards, config: AdvantageConfig) -> Tensor:
    """Pass@k Training (arXiv 2508.10751), analytic: maxk of "passed", which is 0 or 1. With c of N passed and R = 1 - C(N-c,k) / C(N,k),
    s = sqrt(R (1 - R)): (1 - R) / (s + eps) for those that passed, (1 - R - C(N-c-1,k-1) / C(N-1,k-1)) / (s + eps) for the others."""
    return maxk(replace(rewards, total_PG=rewards.passed_PG.double()), config)


def pkpo(rewards: Rewards, config: AdvantageConfig) -> Tensor:
    """N times the mean, over all subsets of k attempts, of what the attempt adds to the best of the others in its subset (0 for subsets
    without it): PKPO with the leave-one-out baseline of k - 1 (arXiv 2505.15201, s^(loo-1)). Its sum over a group estimates the gradient
    of max@k without bias; the factor N undoes the mean of the aggregation. k of at least 2; fewer scored attempts than k get 0."""
    return _by_group(rewards, lambda reward_N: _pkpo(reward_N, k=_k(config)), least=_k(config))


def gdpo(rewards: Rewards, config: AdvantageConfig) -> Tensor:
    """sum_k weight_k * (part_k - mean) / (std + eps), divided by the standard deviation of the batch (GDPO, arXiv 2601.05242).

    Each part is normalised within its group by itself, so a group that differs in a detail is pushed by the detail's weight; grpo pushes
    it as hard as one that differs in what counts. The mean over the batch is 0 already, since it is 0 in every group.
    """
    sum_PG = torch.zeros_like(rewards.total_PG)
    for part_PG, weight_P in zip(rewards.part_KPG, rewards.weight_KP, strict=True):
        sum_PG += weight_P.unsqueeze(1) * grpo(replace(rewards, total_PG=part_PG), config)
    spread = (
        sum_PG[rewards.scored_PG].std(correction=0)
        if rewards.scored_PG.any()
        else sum_PG.new_zeros(())
    )
    return _over(sum_PG, spread + config.eps)


Advantage = Callable[[Rewards, AdvantageConfig], Tensor]
ADVANTAGES: dict[str, Advantage] = {
    "grpo": grpo,
    "mean_only": mean_only,
    "rloo": rloo,
    "gdpo": gdpo,
    "maxk": maxk,
    "passk": passk,
    "pkpo": pkpo,
    "best_minus_second": best_minus_second,
    "maxrl": maxrl,
}


def advantages(
    rewards: Rewards, config: AdvantageConfig, estimator: Advantage | None = None
) -> Tensor:
    """The configured estimator (or the one given), then what the config adds: whitening over the batch, the clip."""
    advantage_PG = (estimator or ADVANTAGES[config.name])(rewards, config)
    if config.whiten:
        advantage_PG = whiten(advantage_PG, rewards.scored_PG)
    return advantage_PG if config.clip is None else advantage_PG.clamp(-config.clip, config.clip)


def whiten(advantage_PG: Tensor, scored_PG: Tensor) -> Tensor:
    """(A - mean) / (std + 1e-8) over all scored attempts of the step, ddof 1."""
    if scored_PG.sum() < 2:
        return torch.zeros_like(advantage_PG)
    scored = advantage_PG[scored_PG]
    return torch.where(
        scored_PG, (advantage_PG - scored.mean()) / (scored.std(correction=1) + WHITEN_EPS), 0.0
    )


def pods(rewards: Rewards, *, keep: int) -> Tensor:
    """Which attempts to train on (P, G): the `keep` of each group with the largest variance of rewards (PODS, arXiv 2504.13818). Those are
    some of the highest and some of the lowest. Mean and standard deviation are then those of the attempts that are kept."""
    kept_PG = rewards.scored_PG.clone()
    for reward_G, kept_G in zip(rewards.total_PG, kept_PG, strict=True):
        places = kept_G.nonzero().flatten()
        if len(places) <= keep:
            continue
        places = places[reward_G[places].argsort(stable=True)]
        choices = [
            torch.cat([places[:low], places[len(places) - keep + low :]]) for low in range(keep + 1)
        ]
        best = max(choices, key=lambda chosen: float(reward_G[chosen].var(correction=0)))
        kept_G[:] = False
        kept_G[best] = True
    return kept_PG


def _mean(reward_PG: Tensor, scored_PG: Tensor) -> Tensor:
    return torch.where(scored_PG, reward_PG, 0.0).sum(dim=1, keepdim=True) / scored_PG.sum(
        dim=1, keepdim=True
    ).clamp(min=1)


def _centred(reward_PG: Tensor, scored_PG: Tensor) -> tuple[Tensor, Tensor]:
    """Rewards minus their group's mean, and how many attempts were scored (P, 1)."""
    reward_PG, count_P1 = reward_PG.double(), scored_PG.sum(dim=1, keepdim=True)
    highest_P1 = torch.where(scored_PG, reward_PG, -torch.inf).amax(dim=1, keepdim=True)
    lowest_P1 = torch.where(scored_PG, reward_PG, torch.inf).amin(dim=1, keepdim=True)
    live_PG = scored_PG & (count_P1 >= 2) & (highest_P1 > lowest_P1)
    return torch.where(live_PG, reward_PG - _mean(reward_PG, scored_PG), 0.0), count_P1


def _spread(centred_PG: Tensor, count_P1: Tensor, *, ddof: int) -> Tensor:
    return ((centred_PG**2).sum(dim=1, keepdim=True) / (count_P1 - ddof).clamp(min=1)).sqrt()


def _over(advantage_PG: Tensor, scale: Tensor) -> Tensor:
    """The quotient; 0 stays 0, whatever it is divided by."""
    return torch.where(advantage_PG == 0, 0.0, advantage_PG / scale)


def _k(config: AdvantageConfig) -> int:
    if config.k is None:
        raise ValueError(f"the estimator {config.name!r} needs a k")
    return config.k


def _by_group(rewards: Rewards, estimate: Callable[[Tensor], Tensor], *, least: int) -> Tensor:
    """`estimate` of the scored rewards (N,) of each group that has `least` of them, at least two, and not all equal."""
    advantage_PG = torch.zeros_like(rewards.total_PG)
    for reward_G, scored_G, advantage_G in zip(
        rewards.total_PG, rewards.scored_PG, advantage_PG, strict=True
    ):
        reward_N = reward_G[scored_G]
        if len(reward_N) >= max(2, least) and reward_N.max() > reward_N.min():
            advantage_G[scored_G] = estimate(reward_N)
    return advantage_PG


def _maxk(reward_N: Tensor, *, k: int, eps: float) -> Tensor:
    N = len(reward_N)
    sorted_N = reward_N.sort().values
    # How many of the subsets have the attempt of rank j as their last: then its reward is their best.
    weight_N = _tensor([comb(j, k - 1) / comb(N, k) for j in range(N)])
    mean = (weight_N * sorted_N).sum()
    spread = (weight_N * (sorted_N - mean) ** 2).sum().sqrt()
    return (_best_with(reward_N, k=k) - mean) / (spread + eps)


def _pkpo(reward_N: Tensor, *, k: int) -> Tensor:
    N = len(reward_N)
    others = [torch.cat([reward_N[:i], reward_N[i + 1 :]]).sort().values for i in range(N)]
    weight = _tensor([comb(j, k - 2) / comb(N - 1, k - 1) for j in range(N - 1)])
    best_others_N = torch.stack([(weight * other).sum() for other in others])
    return k * (_best_with(reward_N, k=k) - best_others_N)


def _best_with(reward_N: Tensor, *, k: int) -> Tensor:
    """For each attempt, the mean of the best reward over all subsets of k that hold it; equal for equal rewards."""
    N = len(reward_N)
    sorted_N = reward_N.sort().values
    subsets = comb(N - 1, k - 1)
    as_best_N = _tensor([comb(i, k - 1) / subsets for i in range(N)]) * sorted_N
    under_N = (
        _tensor([comb(j - 1, k - 2) / subsets if j and k > 1 else 0.0 for j in range(N)]) * sorted_N
    )  # the best is of higher rank
    above_N = under_N.flip(0).cumsum(0).flip(0) - under_N
    best_N = as_best_N + above_N
    return best_N[torch.searchsorted(sorted_N, reward_N, right=True) - 1]


def _tensor(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)
