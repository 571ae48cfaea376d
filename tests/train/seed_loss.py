"""Compute the loss of a batch that other code rolled out (seed 002).

Completions come with their rewards and the log-probs of whole completions, and are grouped by
prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from grpo_core.config.config import RunConfig
from grpo_core.train.algorithm.advantages import advantages
from grpo_core.train.algorithm.losses import AGGREGATIONS, LEVELS, SURROGATES, divergence
from grpo_core.train.algorithm.rewards import Rewards

KEYS = ("prompts", "responses", "rewards", "logprobs", "ref_logprobs", "prompt_ids")
"""Keys that a batch has to hold."""
CLIP = {"name": "clip", "clip_low": 0.2, "clip_high": 0.2}
AS_WRITTEN = RunConfig.model_validate(
    {
        "environment": "",
        "advantage": {"name": "mean_only", "clip": 0.2},
        "loss": {**CLIP, "level": "sequence", "anchor": "reference"},
        "kl": {"beta": 0.001, "estimator": "k1", "importance": False},
    }
)
"""The loss as seed 002 defines it: A = r - mean, clipped to 0.2; the ratio of whole completions to
the reference; 0.001 times the mean of log pi - log pi_ref."""


def loss_from_batch(batch: Mapping[str, Any], config: RunConfig = AS_WRITTEN) -> Tensor:
    """Return the loss () of B completions, with the gradient that `logprobs` carries.

    A completion counts as one token, so every aggregation but `constant` is the mean over
    completions or their sum.

    Args:
        batch: holds `prompts` and `responses` (B texts), `rewards` (B numbers), `logprobs` and
            `ref_logprobs` (B numbers, each summed over the tokens of a completion; a tensor may
            require a gradient), and `prompt_ids` (B integers; equal ones form a group).
        config: settings of advantage, loss and KL.

    Raises:
        ValueError: a key is missing, or the lists differ in length or are empty.
    """
    if missing_keys := [key for key in KEYS if key not in batch]:
        raise ValueError(f"the batch lacks {', '.join(missing_keys)}; it must hold {KEYS}")
    lengths = {key: len(batch[key]) for key in KEYS}
    if len(set(lengths.values())) != 1 or not lengths["rewards"]:
        raise ValueError(f"all lists must have the same length, at least 1; found {lengths}")
    logprob_B1, reference_B1 = (_column(batch[key]) for key in ("logprobs", "ref_logprobs"))
    reference_B1, trainable_B1 = reference_B1.detach(), torch.ones_like(logprob_B1)
    advantage_B1 = _advantages(batch["rewards"], batch["prompt_ids"], config).to(logprob_B1)
    old_B1 = logprob_B1.detach()
    anchor_B1 = reference_B1 if config.loss.anchor == "reference" else old_B1
    log_ratio_B1 = LEVELS[config.loss.level](logprob_B1, anchor_B1, trainable_B1)
    loss_B1 = SURROGATES[config.loss.name](log_ratio_B1, logprob_B1, advantage_B1, config.loss)
    loss_B1 = loss_B1 + config.kl.beta * divergence(
        logprob_B1, old_B1, reference_B1, config.kl, importance=config.kl_importance
    )
    weights = AGGREGATIONS[config.loss.aggregation]([1] * len(logprob_B1), 1)
    return (logprob_B1.new_tensor(weights).unsqueeze(1) * loss_B1).sum()


def _column(values: Any) -> Tensor:
    """Return `values` as a tensor (B, 1)."""
    tensor = values if isinstance(values, Tensor) else torch.tensor(values, dtype=torch.float64)
    return tensor.reshape(-1, 1)


def _advantages(rewards: Sequence[float], prompt_ids: Sequence[int], config: RunConfig) -> Tensor:
    """Return the advantages (B, 1) in the order of the batch; groups may differ in size."""
    places = {
        prompt: [b for b, other in enumerate(prompt_ids) if other == prompt]
        for prompt in dict.fromkeys(prompt_ids)
    }
    widest = max(map(len, places.values()))
    total_PG = torch.zeros(len(places), widest, dtype=torch.float64)
    scored_PG = torch.zeros(len(places), widest, dtype=torch.bool)
    for p, members in enumerate(places.values()):
        reward_G = [float(rewards[b]) for b in members]
        total_PG[p, : len(members)] = torch.tensor(reward_G, dtype=torch.float64)
        scored_PG[p, : len(members)] = True
    advantage_PG = advantages(Rewards.of(total_PG, scored_PG), config.advantage)
    advantage_B1 = torch.zeros(len(rewards), 1, dtype=torch.float64)
    for p, members in enumerate(places.values()):
        advantage_B1[members, 0] = advantage_PG[p, : len(members)]
    return advantage_B1
