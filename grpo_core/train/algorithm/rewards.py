"""Turn verdicts into the tensors that advantages are computed from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from grpo_core.protocol.ties import TOLERANCE
from grpo_core.protocol.types import Group, Rollout, Task, Verdict


@dataclass(frozen=True, slots=True)
class Rewards:
    """Hold the rewards of one batch: P prompts with G completions each, and K reward parts.

    T is the largest number of turns that the policy had in a completion.
    """

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
    turn_PGT: Tensor
    """What each turn of the policy earned, of all parts together; 0 after the last turn. The sum
    over the turns is the total."""
    turns_PG: Tensor
    """Number of the policy's turns in each completion."""

    @classmethod
    def of(cls, total_PG: Tensor, scored_PG: Tensor | None = None) -> Rewards:
        """Build the rewards of a single part with weight 1, each for one turn.

        A reward above 0, by more than rounding, counts as passed.

        Args:
            total_PG: rewards (P, G).
            scored_PG: which completions were scored; all of them if None.
        """
        scored_PG = torch.ones_like(total_PG, dtype=torch.bool) if scored_PG is None else scored_PG
        total_PG = total_PG.double()
        return cls(
            total_PG,
            scored_PG,
            total_PG > TOLERANCE,
            total_PG.unsqueeze(0),
            torch.ones(1, len(total_PG), dtype=torch.float64),
            total_PG.unsqueeze(2),
            torch.ones_like(total_PG, dtype=torch.int64),
        )

    @property
    def reached(self) -> Tensor:
        """Return True for each turn that the policy had."""
        return torch.arange(self.turn_PGT.shape[2]) < self.turns_PG.unsqueeze(2)

    def counted(self, advantage: Tensor) -> Tensor:
        """Return True where an advantage belongs to a scored completion and to a turn that it had.

        Args:
            advantage: one for each completion (P, G), or for each turn (P, G, T).
        """
        if advantage.dim() == self.scored_PG.dim():
            return self.scored_PG
        return self.scored_PG.unsqueeze(2) & self.reached

    def plus(self, value_PG: Tensor, weight: float) -> Rewards:
        """Return these rewards with one more part, `value_PG`, of the given weight.

        The last turn of each completion earned it.
        """
        added_PG = weight * value_PG.double()
        last_PG1 = (self.turns_PG - 1).clamp(min=0).unsqueeze(2)
        return replace(
            self,
            total_PG=self.total_PG + added_PG,
            turn_PGT=self.turn_PGT.scatter_add(2, last_PG1, added_PG.unsqueeze(2)),
            part_KPG=torch.cat([self.part_KPG, value_PG.double().unsqueeze(0)]),
            weight_KP=torch.cat(
                [self.weight_KP, torch.full((1, len(value_PG)), weight, dtype=torch.float64)]
            ),
        )


def rewards(groups: Sequence[Group[Any]]) -> Rewards:
    """Collect the verdicts of P groups of G completions each into tensors."""
    verdicts_PG = [group.verdicts for group in groups]
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
    turns_PG = torch.tensor([[rollout.turns for rollout in group.rollouts] for group in groups])
    turn_PGT = torch.zeros(*turns_PG.shape, max(1, int(turns_PG.max())), dtype=torch.float64)
    for p, judged in enumerate(groups):
        for g, (rollout, verdict) in enumerate(zip(judged.rollouts, judged.verdicts, strict=True)):
            earned = _by_turn(verdict, rollout) if verdict.scored else []
            turn_PGT[p, g, : len(earned)] = torch.tensor(earned, dtype=torch.float64)
    return Rewards(total_PG, scored_PG, passed_PG, part_KPG, weight_KP, turn_PGT, turns_PG)


def _by_turn(verdict: Verdict, rollout: Rollout) -> list[float]:
    """Return what each of the policy's turns earned, of all parts together.

    A part that does not say it counts as earned in the last turn.
    """
    terms_T: list[list[float]] = [[] for _ in range(max(1, rollout.turns))]
    for reward in verdict.rewards.values():
        if reward.turns is None:
            terms_T[-1].append(reward.weight * reward.value)
            continue
        for t, value in enumerate(reward.turns):
            terms_T[t].append(reward.weight * value)
    return [math.fsum(terms) for terms in terms_T]


def shuffled(original: Rewards, tasks_P: Sequence[Task[Any]]) -> Rewards:
    """Return the rewards with those of each group's scored completions in random order.

    This is a control experiment: the rewards then carry no information about the completions. A
    completion gets all turns' rewards of another one, also those for turns that it did not have:
    the return from each turn on then has the same distribution for every member of the group.
    """
    total_PG, passed_PG, part_KPG, turn_PGT = (
        original.total_PG.clone(),
        original.passed_PG.clone(),
        original.part_KPG.clone(),
        original.turn_PGT.clone(),
    )
    for p, task in enumerate(tasks_P):
        places = original.scored_PG[p].nonzero().flatten().tolist()
        drawn = task.key.rng("shuffle", task.draw).sample(places, len(places))
        total_PG[p, places] = total_PG[p, drawn]
        passed_PG[p, places] = passed_PG[p, drawn]
        part_KPG[:, p, places] = part_KPG[:, p, drawn]
        turn_PGT[p, places] = turn_PGT[p, drawn]
    return replace(
        original,
        total_PG=total_PG,
        passed_PG=passed_PG,
        part_KPG=part_KPG,
        turn_PGT=turn_PGT,
    )


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
