"""Verdicts as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from grpo_core.types import Task, Verdict


@dataclass(frozen=True, slots=True)
class Rewards:
    """total_PG: in float64; scored_PG: which attempts were scored (others hold 0, which nothing reads); part_KPG, weight_KP: each part's
    value and weight (an environment of a mixture that has fewer parts than another holds 0 in the rest)."""

    total_PG: Tensor
    scored_PG: Tensor
    part_KPG: Tensor
    weight_KP: Tensor


def rewards(verdicts_PG: Sequence[Sequence[Verdict]]) -> Rewards:
    """What the advantages are made of."""
    total_PG = torch.tensor([[v.total if v.scored else 0.0 for v in group] for group in verdicts_PG], dtype=torch.float64)
    scored_PG = torch.tensor([[v.scored for v in group] for group in verdicts_PG])
    parts = max((len(v.rewards) for group in verdicts_PG for v in group), default=0)
    part_KPG = torch.zeros(parts, *scored_PG.shape, dtype=torch.float64)
    weight_KP = torch.zeros(parts, len(verdicts_PG), dtype=torch.float64)
    for p, group in enumerate(verdicts_PG):
        for g, verdict in enumerate(group):
            for k, reward in enumerate(verdict.rewards.values()):
                part_KPG[k, p, g], weight_KP[k, p] = reward.value, reward.weight
    return Rewards(total_PG, scored_PG, part_KPG, weight_KP)


def shuffled(found: Rewards, tasks_P: Sequence[Task[Any]]) -> Rewards:
    """The control experiment: each group's scored rewards in random order, so that they say nothing about the attempts."""
    total_PG, part_KPG = found.total_PG.clone(), found.part_KPG.clone()
    for p, task in enumerate(tasks_P):
        places = found.scored_PG[p].nonzero().flatten().tolist()
        drawn = task.key.rng("shuffle", task.draw).sample(places, len(places))
        total_PG[p, places] = total_PG[p, drawn]
        part_KPG[:, p, places] = part_KPG[:, p, drawn]
    return replace(found, total_PG=total_PG, part_KPG=part_KPG)
