"""Estimate advantages by pure functions: (rewards, config) -> advantage_PG or advantage_PGT.

Axes: P prompts, G completions of a prompt, T turns of the policy, K reward parts, N scored
completions of a group. An advantage is that of a whole completion, or that of each turn. All
values are float64. Statistics run over the scored completions of each group alone: an unscored
completion gets exactly 0 and affects nothing. A group with fewer than two scored completions or
with equal rewards gets exactly 0 too, which the formulas alone do not give in floating point.
Rewards are equal up to rounding (`grpo_core.protocol.ties`): 0.1 + 0.2 is 0.3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import comb

import torch
from torch import Tensor

from grpo_core.config.settings import AdvantageConfig
from grpo_core.train.algorithm.rewards import Rewards
from grpo_core.train.algorithm.ties import cancelled, settled, tied

WHITEN_EPS = 1e-8
"""Added to the standard deviation of the batch in `whiten`."""
MAX_LIFT = 2.0
"""How much larger than without dead groups `gdpo` may make the advantages of the live ones."""


def grpo(rewards: Rewards, config: AdvantageConfig) -> Tensor:
    """Return (r - mean) / (std + eps) (DeepSeekMath, arXiv 2402.03300).

    The defaults are ddof 0 and eps 1e-6 (TRL: ddof 1, 1e-4; verl and SkyRL: ddof 1, 1e-6;
    open-instruct: ddof 0, 1e-8).
    """
    centred_PG, count_P1 = _centre(rewards.total_PG, rewards.scored_PG)
    return _divide(centred_PG, _std(centred_PG, count_P1, ddof=config.ddof) + config.eps)


def mean_only(rewards: Rewards, config: AdvantageConfig) -> Tensor:
    """Return r - mean (Dr. GRPO, arXiv 2503.20783; prime-rl, nanochat)."""
    return _centre(rewards.total_PG, rewards.scored_PG)[0]


def rloo(rewards: Rewards, config: AdvantageConfig) -> Tensor:
    """Return r minus the mean of the others, N / (N - 1) * (r - mean) (RLOO, arXiv 2402.14740)."""
    centred_PG, count_P1 = _centre(rewards.total_PG, rewards.scored_PG)
    return centred_PG * count_P1 / (count_P1 - 1).clamp(min=1)


def maxrl(rewards: Rewards, config: AdvantageConfig) -> Tensor:
    """Return (r - mean) / mean, and 0 where the mean is 0 (prime-rl, SkyRL).

    Made for rewards that are never negative.
    """
    mean_P1 = _group_mean(rewards.total_PG, rewards.scored_PG)
    size_P1 = _group_mean(rewards.total_PG.abs(), rewards.scored_PG)
    centred_PG, _ = _centre(rewards.total_PG, rewards.scored_PG)
    return torch.where(
        (mean_P1 > 0) & ~cancelled(mean_P1, size_P1),
        centred_PG / mean_P1.clamp(min=torch.finfo(torch.float64).tiny),
        0.0,
    )


def best_minus_second(rewards: Rewards, config: AdvantageConfig) -> Tensor:
    """Return (highest - second) / (std + eps) for the best completion and 0 for the others.

    The standard deviation has ddof 1 (arXiv 2503.19595; "grpo_passk" in verl).
    """
    centred_PG, count_P1 = _centre(rewards.total_PG, rewards.scored_PG)
    ranked_PG = torch.where(rewards.scored_PG, rewards.total_PG, -torch.inf)
    ranked_PG = torch.stack([settled(ranked_G) for ranked_G in ranked_PG])
    top_P2, place_P2 = ranked_PG.topk(2, dim=1)
    lead_P1 = torch.where(count_P1 >= 2, top_P2[:, :1] - top_P2[:, 1:], 0.0)
    best_PG = torch.zeros_like(centred_PG).scatter(1, place_P2[:, :1], lead_P1)
    return _divide(best_PG, _std(centred_PG, count_P1, ddof=1) + config.eps)


def maxk(rewards: Rewards, config: AdvantageConfig) -> Tensor:
    """Return the Max@k advantage, for any rewards.

    Over all subsets of k completions, it is (mean of the best reward of the subsets that contain
    the completion - mean of the best reward of all subsets) / (std over all subsets + eps): the
    closed form of the subset estimator of Pass@k Training (arXiv 2508.10751). With k = 1 it is grpo
    with ddof 0. A group with k or fewer scored completions has at most one subset and gets 0, and
    so does one whose subsets all have the same best. Equal rewards get equal advantages.
    """
    return _by_group(
        rewards,
        lambda reward_N: _maxk(reward_N, k=_require_k(config), eps=config.eps),
        least=_require_k(config) + 1,
    )


def passk(rewards: Rewards, config: AdvantageConfig) -> Tensor:
    """Return the analytic advantage of Pass@k Training (arXiv 2508.10751).

    It is maxk of "passed", which is 0 or 1. With c of N passed, R = 1 - C(N-c,k) / C(N,k) and
    s = sqrt(R (1 - R)), a completion that passed gets (1 - R) / (s + eps), and one that failed gets
    (1 - R - C(N-c-1,k-1) / C(N-1,k-1)) / (s + eps).
    """
    return maxk(replace(rewards, total_PG=rewards.passed_PG.double()), config)


def pkpo(rewards: Rewards, config: AdvantageConfig) -> Tensor:
    """Return the PKPO advantage with a leave-one-out baseline (arXiv 2505.15201, s^(loo-1)).

    The baseline is that of k - 1. The advantage is N times the mean, over all subsets of k
    completions, of how much the completion raises the best reward of its subset (0 for subsets
    without it). Its sum over a group estimates the gradient of max@k without bias; the factor N
    cancels the mean taken by the aggregation. It needs k of at least 2; a group with fewer than k
    scored completions gets 0.
    """
    return _by_group(
        rewards, lambda reward_N: _pkpo(reward_N, k=_require_k(config)), least=_require_k(config)
    )


def gdpo(rewards: Rewards, config: AdvantageConfig) -> Tensor:
    """Return the GDPO advantage (arXiv 2601.05242).

    It is sum_k weight_k * (part_k - mean) / (std + eps), divided by the standard deviation of the
    batch. Each part is normalised within its group by itself, so a group whose completions differ
    only in a minor part gets advantages in proportion to that part's weight; grpo would give it as
    large ones as a group that differs in the main part. The mean over the batch needs no
    subtraction: it is 0 in every group. A group whose parts cancel up to rounding gets exactly 0.

    As in the paper and its code the batch includes dead groups, whose zeros lower its standard
    deviation: one live group among P would get sqrt(P) times the advantages that it has alone. Here
    dead groups make them at most twice as large, which differs from the paper where less than a
    quarter of the completions is in live groups. Both standard deviations have `config.ddof` (the
    paper's code and TRL: 1).
    """
    sum_PG, size_PG = torch.zeros_like(rewards.total_PG), torch.zeros_like(rewards.total_PG)
    for part_PG, weight_P in zip(rewards.part_KPG, rewards.weight_KP, strict=True):
        term_PG = weight_P.unsqueeze(1) * grpo(replace(rewards, total_PG=part_PG), config)
        sum_PG += term_PG
        size_PG += term_PG.abs()
    sum_PG = torch.where(cancelled(sum_PG, size_PG), 0.0, sum_PG)
    live_PG = rewards.scored_PG & (sum_PG != 0).any(dim=1, keepdim=True)
    spread = torch.maximum(
        _batch_std(sum_PG[rewards.scored_PG], ddof=config.ddof),
        _batch_std(sum_PG[live_PG], ddof=config.ddof) / MAX_LIFT,
    )
    return _divide(sum_PG, spread + config.eps)


def turns(rewards: Rewards, config: AdvantageConfig) -> Tensor:
    """Return, by turn, the return from it on minus the mean of the other completions' return.

    The return from turn t on is what turn t and later ones earned: 0 for a completion that ended
    before t, which counts in the mean. What the others earn does not depend on what this completion
    does, so with the sum over tokens the gradient is that of the expected reward. Normalising each
    turn over the completions that reached it, as grpo and mean_only do with a group, is biased
    where the policy decides when to stop: of the gradient at a turn that n reach it keeps
    (n - 1) / n, so rare turns lose most. With one turn each it is rloo.
    """
    return_PGT = rewards.turn_PGT.flip(2).cumsum(2).flip(2)
    advantage_PGT = torch.stack(
        [rloo(replace(rewards, total_PG=return_PG), config) for return_PG in return_PGT.unbind(2)],
        dim=2,
    )
    return torch.where(rewards.reached, advantage_PGT, 0.0)


Advantage = Callable[[Rewards, AdvantageConfig], Tensor]
"""Signature of an estimator: (rewards, config) -> advantage_PG, or by turn advantage_PGT."""
ADVANTAGES: dict[str, Advantage] = {
    function.__name__: function
    for function in (
        grpo,
        mean_only,
        rloo,
        gdpo,
        maxk,
        passk,
        pkpo,
        best_minus_second,
        maxrl,
        turns,
    )
}
"""Built-in estimators by the name that `advantage.name` takes."""


def advantages(
    rewards: Rewards, config: AdvantageConfig, estimator: Advantage | None = None
) -> Tensor:
    """Apply the configured estimator, then whitening over the batch and the clip if configured.

    Args:
        rewards: of the whole batch.
        config: names the estimator and sets its options.
        estimator: used in place of the configured one, if given.

    Returns:
        The advantages in float64: of completions (P, G), or of their turns (P, G, T).
    """
    advantage = (estimator or ADVANTAGES[config.name])(rewards, config)
    if config.whiten:
        advantage = whiten(advantage, rewards.counted(advantage))
    return advantage if config.clip is None else advantage.clamp(-config.clip, config.clip)


def whiten(advantage: Tensor, counted: Tensor) -> Tensor:
    """Return (A - mean) / (std + 1e-8) over all advantages of the step that count, with ddof 1.

    Args:
        advantage: of completions (P, G), or of their turns (P, G, T).
        counted: True where an advantage counts; the others become 0.
    """
    if counted.sum() < 2:
        return torch.zeros_like(advantage)
    values = advantage[counted]
    whitened = (advantage - values.mean()) / (values.std(correction=1) + WHITEN_EPS)
    if cancelled(values.mean().view(1, 1), values.abs().mean().view(1, 1)):
        # A group without a signal keeps none where the mean is 0 but for rounding.
        dead_P = (advantage == 0).flatten(1).all(dim=1)
        counted = counted & ~dead_P.view(-1, *(1,) * (advantage.dim() - 1))
    return torch.where(counted, whitened, 0.0)


def pods(rewards: Rewards, *, keep: int) -> Tensor:
    """Select the `keep` completions of each group with the largest variance of rewards.

    This is PODS (arXiv 2504.13818). The selection consists of some of the highest and some of the
    lowest rewards. Mean and standard deviation are then those of the selected completions.

    Returns:
        True (P, G) where a completion is trained on.
    """
    kept_PG = rewards.scored_PG.clone()
    for reward_G, kept_G in zip(rewards.total_PG, kept_PG, strict=True):
        places = kept_G.nonzero().flatten()
        if len(places) <= keep:
            continue
        places = places[settled(reward_G[places]).argsort(stable=True)]
        choices = [
            torch.cat([places[:low], places[len(places) - keep + low :]]) for low in range(keep + 1)
        ]
        best = max(choices, key=lambda chosen: float(reward_G[chosen].var(correction=0)))
        kept_G[:] = False
        kept_G[best] = True
    return kept_PG


def _group_mean(reward_PG: Tensor, scored_PG: Tensor) -> Tensor:
    """Return the mean reward (P, 1) of the scored completions of each group."""
    return torch.where(scored_PG, reward_PG, 0.0).sum(dim=1, keepdim=True) / scored_PG.sum(
        dim=1, keepdim=True
    ).clamp(min=1)


def _centre(reward_PG: Tensor, scored_PG: Tensor) -> tuple[Tensor, Tensor]:
    """Subtract from each reward the mean of its group.

    Returns:
        The differences (P, G), 0 where unscored or where the group gives no signal, and the number
        of scored completions (P, 1).
    """
    reward_PG, count_P1 = reward_PG.double(), scored_PG.sum(dim=1, keepdim=True)
    live_PG = scored_PG & (count_P1 >= 2) & ~tied(reward_PG, scored_PG)
    return torch.where(live_PG, reward_PG - _group_mean(reward_PG, scored_PG), 0.0), count_P1


def _std(centred_PG: Tensor, count_P1: Tensor, *, ddof: int) -> Tensor:
    """Return the standard deviation (P, 1) of each group."""
    return ((centred_PG**2).sum(dim=1, keepdim=True) / (count_P1 - ddof).clamp(min=1)).sqrt()


def _batch_std(advantage_N: Tensor, *, ddof: int) -> Tensor:
    """Return the standard deviation () of the advantages; 0 if there are too few."""
    if len(advantage_N) <= ddof:
        return advantage_N.new_zeros(())
    return advantage_N.std(correction=ddof)


def _divide(advantage_PG: Tensor, scale: Tensor) -> Tensor:
    """Return advantage / scale; 0 stays 0, even where the scale is 0."""
    return torch.where(advantage_PG == 0, 0.0, advantage_PG / scale)


def _require_k(config: AdvantageConfig) -> int:
    """Return the configured k; raise ValueError if there is none."""
    if config.k is None:
        raise ValueError(f"the estimator {config.name!r} needs a k; set advantage.k")
    return config.k


def _by_group(rewards: Rewards, estimate: Callable[[Tensor], Tensor], *, least: int) -> Tensor:
    """Apply `estimate` to the scored rewards (N,) of each group; other groups get 0.

    Args:
        rewards: of the whole batch.
        estimate: maps rewards (N,) to advantages (N,); equal rewards have equal bits.
        least: how many scored rewards, not all equal, a group needs; at least two in any case.
    """
    advantage_PG = torch.zeros_like(rewards.total_PG)
    for reward_G, scored_G, advantage_G in zip(
        rewards.total_PG, rewards.scored_PG, advantage_PG, strict=True
    ):
        reward_N = settled(reward_G[scored_G])
        if len(reward_N) >= max(2, least) and reward_N.max() > reward_N.min():
            advantage_G[scored_G] = estimate(reward_N)
    return advantage_PG


def _maxk(reward_N: Tensor, *, k: int, eps: float) -> Tensor:
    """Return the maxk advantages (N,) of one group."""
    N = len(reward_N)
    sorted_N = reward_N.sort().values
    if sorted_N[k - 1] == sorted_N[-1]:  # the worst best of a subset is the best one
        return torch.zeros_like(reward_N)
    # Share of the subsets whose highest rank is j: the reward of that rank is their best.
    weight_N = _tensor([comb(j, k - 1) / comb(N, k) for j in range(N)])
    mean = (weight_N * sorted_N).sum()
    spread = (weight_N * (sorted_N - mean) ** 2).sum().sqrt()
    return (_best_with_each(reward_N, k=k) - mean) / (spread + eps)


def _pkpo(reward_N: Tensor, *, k: int) -> Tensor:
    """Return the pkpo advantages (N,) of one group."""
    N = len(reward_N)
    sorted_N = reward_N.sort().values
    if sorted_N[k - 2] == sorted_N[-1]:  # every subset of k - 1 has the best one
        return torch.zeros_like(reward_N)
    others = [torch.cat([reward_N[:i], reward_N[i + 1 :]]).sort().values for i in range(N)]
    weight = _tensor([comb(j, k - 2) / comb(N - 1, k - 1) for j in range(N - 1)])
    best_others_N = torch.stack([(weight * other).sum() for other in others])
    return k * (_best_with_each(reward_N, k=k) - best_others_N)


def _best_with_each(reward_N: Tensor, *, k: int) -> Tensor:
    """Return, for each completion, the mean best reward over all subsets of k that contain it.

    Equal rewards give equal means.
    """
    N = len(reward_N)
    sorted_N = reward_N.sort().values
    subsets = comb(N - 1, k - 1)
    as_best_N = _tensor([comb(i, k - 1) / subsets for i in range(N)]) * sorted_N
    # Here a completion of higher rank is the best.
    under_N = (
        _tensor([comb(j - 1, k - 2) / subsets if j and k > 1 else 0.0 for j in range(N)]) * sorted_N
    )
    above_N = under_N.flip(0).cumsum(0).flip(0) - under_N
    best_N = as_best_N + above_N
    return best_N[torch.searchsorted(sorted_N, reward_N, right=True) - 1]


def _tensor(values: list[float]) -> Tensor:
    """Return a float64 tensor of `values`."""
    return torch.tensor(values, dtype=torch.float64)
