"""Read from a step's groups what the alarms look at."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, compress
from typing import Any

from grpo_core import Group, Rollout, Task, Verdict
from grpo_core.protocol.events import RolloutPlace


@dataclass(frozen=True, slots=True)
class Scored:
    """Hold one attempt that could be scored."""

    group: Group[Any]
    number: int
    """Its number in the group."""
    reward: float
    """Its total reward."""

    @property
    def rollout(self) -> Rollout:
        """Return what the policy wrote."""
        return self.group.rollouts[self.number]

    @property
    def verdict(self) -> Verdict:
        """Return how it was judged."""
        return self.group.verdicts[self.number]

    def shown(self, step: int) -> RolloutPlace:
        """Return where the attempt is found in the log."""
        return RolloutPlace(step, self.group.task.key, self.group.task.draw, self.number)


@dataclass(frozen=True, slots=True)
class Seen:
    """Hold the scored attempts of one environment in one step, by group; no group is empty."""

    step: int
    groups: Sequence[Sequence[Scored]]

    @classmethod
    def of(cls, step: int, groups: Sequence[Group[Any]], environment: str) -> Seen:
        """Return what a step's groups show of an environment."""
        scored_by_group = (
            [
                Scored(group, number, verdict.total)
                for number, verdict in enumerate(group.verdicts)
                if verdict.scored
            ]
            for group in groups
            if group.task.key.env == environment
        )
        return cls(step, [scored for scored in scored_by_group if scored])

    @property
    def attempts(self) -> Iterator[Scored]:
        """Return the attempts of all groups."""
        return chain.from_iterable(self.groups)

    @property
    def tasks(self) -> list[Task[Any]]:
        """Return the tasks, each once, in their order."""
        tasks = (group[0].group.task for group in self.groups)
        return list({task.key: task for task in tasks}.values())

    @property
    def best(self) -> Scored:
        """Return the attempt with the highest reward, the first of several."""
        return max(self.attempts, key=lambda scored: scored.reward)

    def audited(self, groups: Sequence[Group[Any]]) -> Seen:
        """Return the same attempts with the verdicts of the audited groups, one for each group."""
        return replace(
            self,
            groups=[
                [replace(scored, group=group) for scored in scored_group]
                for scored_group, group in zip(self.groups, groups, strict=True)
            ],
        )

    def values(self, measure: str) -> list[list[tuple[float, float]]]:
        """Return (measure, reward) of the attempts of each group that have the measure."""
        return [
            [
                (value, scored.reward)
                for scored in group
                if not math.isnan(value := value_of(scored, measure))
            ]
            for group in self.groups
        ]

    def collisions(self) -> float:
        """Return how often two attempts at different tasks have the same text; NaN for one task.

        The text is the whole last turn: a policy that thinks differently has not collapsed.
        """
        return collisions(
            [[scored.rollout.raw.strip() for scored in group] for group in self.groups]
        )


def value_of(scored: Scored, measure: str) -> float:
    """Return a measure of an attempt; NaN if it has none.

    Args:
        measure: "length", "entropy", "passed", "part/NAME" or "metric/NAME".
    """
    verdict, kind, name = scored.verdict, *measure.partition("/")[::2]
    if kind == "length":
        return float(scored.rollout.sampled_tokens)
    if kind == "entropy":
        return sampled_entropy(scored.rollout)
    if kind == "passed":
        return float(verdict.passed)
    if kind == "part":
        return verdict.rewards[name].value if name in verdict.rewards else math.nan
    return verdict.metrics.get(name, math.nan)


def sampled_entropy(rollout: Rollout) -> float:
    """Return the mean of -log p of the sampled tokens, an unbiased estimate of the entropy."""
    segments = rollout.segments
    count = sum(sum(segment.trainable) for segment in segments)
    total = sum(sum(compress(segment.logprobs, segment.trainable)) for segment in segments)
    return -total / count if count else math.nan


def collisions(texts_by_task: Sequence[Sequence[str]]) -> float:
    """Return the share of equal pairs among pairs of texts for different tasks; NaN if none."""
    counts = [Counter(texts) for texts in texts_by_task]
    together = Counter[str]()
    for counter in counts:
        together.update(counter)

    def squares(counter: Counter[str]) -> int:
        return sum(count * count for count in counter.values())

    pairs = together.total() ** 2 - sum(counter.total() ** 2 for counter in counts)
    equal = squares(together) - sum(map(squares, counts))
    return equal / pairs if pairs else math.nan
