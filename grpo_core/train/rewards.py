"""Verdicts as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from grpo_core.types import Task, Verdict


def rewards(verdicts_PG: Sequence[Sequence[Verdict]]) -> tuple[Tensor, Tensor]:
    """Totals (P, G) in float64 and which attempts were scored (P, G); an unscored one holds 0, which nothing reads."""
    reward_PG = torch.tensor([[v.total if v.scored else 0.0 for v in group] for group in verdicts_PG], dtype=torch.float64)
    scored_PG = torch.tensor([[v.scored for v in group] for group in verdicts_PG])
    return reward_PG, scored_PG


def shuffled(reward_PG: Tensor, scored_PG: Tensor, tasks_P: Sequence[Task[Any]]) -> Tensor:
    """The control experiment: each group's scored rewards in random order, so that they say nothing about the attempts."""
    reward_PG = reward_PG.clone()
    for p, task in enumerate(tasks_P):
        places = scored_PG[p].nonzero().flatten().tolist()
        reward_PG[p, places] = reward_PG[p, task.key.rng("shuffle", task.draw).sample(places, len(places))]
    return reward_PG
