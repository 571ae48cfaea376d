"""Turn verdicts into the tensors that advantages are computed from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from grpo_core.protocol.types import Task, Verdict


@dataclass(frozen=True, slots=True)
class Rewards:
    """Hold the rewards of one batch: P prompts with G completions each, and K reward parts."""

    total_PG: Tensor
    """Total reward of each completion, in float64; 0 where unscored, which nothing reads."""
    scored_PG: Tensor
    """True where the completion was scored."""
    passed_PG: Tensor
    """True where the completion succeeded by the environment's own definition."""
    part_KPG: Tensor
    """Values of the parts that the totals are weighted sums of. In a mixture of environments, one
    with fewer parts than another holds 0 in the rest."""
    weight_KP: Tensor
    """Weight of each part in the total."""

    @classmethod
    def of(cls, total_PG: Tensor, scored_PG: Tensor | None = None) -> Rewards:
        """Build the rewards of a single part with weight 1; a reward above 0 counts as passed.

        Args:
            total_PG: rewards (P, G).
            scored_PG: which completions were scored; all of them if None.
        """
        scored_PG = torch.ones_like(total_PG, dtype=torch.bool) if scored_PG is None else scored_PG
        total_PG = total_PG.double()
        return cls(
            total_PG,
            scored_PG,
            total_PG > 0,
            total_PG.unsqueeze(0),
            torch.ones(1, len(total_PG), dtype=torch.float64),
        )

    def plus(self, value_PG: Tensor, weight: float) -> Rewards:
        """Return these rewards with one more part, `value_PG`, of the given weight."""
        return replace(
            self,
            total_PG=self.total_PG + weight * value_PG.double(),
            part_KPG=torch.cat([self.part_KPG, value_PG.double().unsqueeze(0)]),
            weight_KP=torch.cat(
                [self.weight_KP, torch.full((1, len(value_PG)), weight, dtype=torch.float64)]
            ),
        )


def rewards(verdicts_PG: Sequence[Sequence[Verdict]]) -> Rewards:
    """Collect the verdicts of P groups of G completions each into tensors."""
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


def shuffled(original: Rewards, tasks_P: Sequence[Task[Any]]) -> Rewards:
    """Return the rewards with those of each group's scored completions in random order.

    This is a control experiment: the rewards then carry no information about the completions.
    """
    total_PG, passed_PG, part_KPG = (
        original.total_PG.clone(),
        original.passed_PG.clone(),
        original.part_KPG.clone(),
    )
    for p, task in enumerate(tasks_P):
        places = original.scored_PG[p].nonzero().flatten().tolist()
        drawn = task.key.rng("shuffle", task.draw).sample(places, len(places))
        total_PG[p, places] = total_PG[p, drawn]
        passed_PG[p, places] = passed_PG[p, drawn]
        part_KPG[:, p, places] = part_KPG[:, p, drawn]
    return replace(original, total_PG=total_PG, passed_PG=passed_PG, part_KPG=part_KPG)


def overlong(lengths_PG: Tensor, *, longest: Tensor, buffer: int) -> Tensor:
    """Return DAPO's soft penalty for long completions (arXiv 2503.14476, equation 13).

    Args:
        lengths_PG: completion lengths in tokens.
        longest: the length (P, 1) at and beyond which the penalty is -1.
        buffer: the penalty is 0 up to `longest - buffer` tokens and falls linearly from there.

    Returns:
        The penalties (P, G), between -1 and 0.
    """
    return ((longest - buffer - lengths_PG.double()) / buffer).clamp(-1, 0)
