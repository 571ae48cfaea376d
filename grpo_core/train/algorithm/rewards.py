"""Verdicts as tensors: what advantages are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from grpo_core.protocol.types import Task, Verdict


@dataclass(frozen=True, slots=True)
class Rewards:
    """total_PG: in float64; scored_PG: which attempts were scored (others hold 0, which nothing reads); passed_PG: the environment's own
    notion of success; part_KPG, weight_KP: value and weight of the parts that the totals are the sums of (an environment of a mixture
    that has fewer parts than another holds 0 in the rest)."""

    total_PG: Tensor
    scored_PG: Tensor
    passed_PG: Tensor
    part_KPG: Tensor
    weight_KP: Tensor

    @classmethod
    def of(cls, total_PG: Tensor, scored_PG: Tensor | None = None) -> Rewards:
        """Rewards of one part; scored_PG: all, if left out. What is above 0 passed."""
        scored_PG = torch.ones_like(total_PG, dtype=torch.bool) if scored_PG is None else scored_PG
        total_PG = total_PG.double()
        return cls(
            total_PG,
            scored_PG,
            total_PG > 0,
            total_PG.unsqueeze(0),
            torch.ones(1, len(total_PG), dtype=torch.float64),
        )

    def of_groups(self, place_P: Tensor) -> Rewards:
        """Those of some of the groups."""
        return Rewards(
            self.total_PG[place_P],
            self.scored_PG[place_P],
            self.passed_PG[place_P],
            self.part_KPG[:, place_P],
            self.weight_KP[:, place_P],
        )

    def plus(self, value_PG: Tensor, weight: float) -> Rewards:
        """With one more part."""
        return replace(
            self,
            total_PG=self.total_PG + weight * value_PG.double(),
            part_KPG=torch.cat([self.part_KPG, value_PG.double().unsqueeze(0)]),
            weight_KP=torch.cat(
                [self.weight_KP, torch.full((1, len(value_PG)), weight, dtype=torch.float64)]
            ),
        )


def rewards(verdicts_PG: Sequence[Sequence[Verdict]]) -> Rewards:
    """What the advantages are made of."""
    total_PG = torch.tensor(
        [[v.total if v.scored else 0.0 for v in group] for group in verdicts_PG],
        dtype=torch.float64,
    )
    scored_PG = torch.tensor([[v.scored for v in group] for group in verdicts_PG])
    passed_PG = torch.tensor([[v.passed for v in group] for group in verdicts_PG])
    parts = max((len(v.rewards) for group in verdicts_PG for v in group), default=0)
    part_KPG = torch.zeros(parts, *scored_PG.shape, dtype=torch.float64)
    weight_KP = torch.zeros(parts, len(verdicts_PG), dtype=torch.float64)
    for p, group in enumerate(verdicts_PG):
        for g, verdict in enumerate(group):
            for k, reward in enumerate(verdict.rewards.values()):
                part_KPG[k, p, g], weight_KP[k, p] = reward.value, reward.weight
    return Rewards(total_PG, scored_PG, passed_PG, part_KPG, weight_KP)


def shuffled(found: Rewards, tasks_P: Sequence[Task[Any]]) -> Rewards:
    """The control experiment: each group's scored rewards in random order, so that they say nothing about the attempts."""
    total_PG, passed_PG, part_KPG = (
        found.total_PG.clone(),
        found.passed_PG.clone(),
        found.part_KPG.clone(),
    )
    for p, task in enumerate(tasks_P):
        places = found.scored_PG[p].nonzero().flatten().tolist()
        drawn = task.key.rng("shuffle", task.draw).sample(places, len(places))
        total_PG[p, places] = total_PG[p, drawn]
        passed_PG[p, places] = passed_PG[p, drawn]
        part_KPG[:, p, places] = part_KPG[:, p, drawn]
    return replace(found, total_PG=total_PG, passed_PG=passed_PG, part_KPG=part_KPG)


def overlong(lengths_PG: Tensor, *, longest: Tensor, buffer: int) -> Tensor:
    """The soft punishment of DAPO (arXiv 2503.14476, equation 13): 0 up to `longest - buffer` tokens, falling to -1 at `longest` (P, 1)
    and beyond."""
    return ((longest - buffer - lengths_PG.double()) / buffer).clamp(-1, 0)
