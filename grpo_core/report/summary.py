"""Several attempts at each task as statistics: by chance of success, by reward, by vote and by part, with errors clustered by task."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from grpo_core.protocol.types import Group, Verdict
from grpo_core.report.statistics import Estimate, best_at, majority_at, over_tasks, pass_at, powers


@dataclass(frozen=True, slots=True)
class Summary:
    """Of one environment at one level. tasks: how many were asked; statistics: by name; attempts, and of them unscored: what could not be
    judged and is in no statistic; audits_failed: audits that gave no value where they should have; clipped: the share of attempts that
    reached their budget; tokens: that the policy wrote."""

    environment: str
    level: float
    tasks: int
    samples: int
    statistics: dict[str, Estimate] = field(default_factory=dict)
    attempts: int = 0
    unscored: int = 0
    audits_failed: int = 0
    clipped: float = 0.0
    tokens: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def summarize(
    groups: Sequence[Group[Any]],
    *,
    environment: str,
    level: float,
    samples: int,
    parts: Collection[str],
) -> Summary:
    """pass rate and reward are means over samples; pass@k, max@k (the best reward) and majority@k (the answer most often given) are the
    expected values for k samples, k = 2, 4, ... and the number of samples. Where some could not be judged, k goes up to what every task
    has left. audit: the mean of the environment's stricter check, if it has one. part NAME: that of a reward part, without its weight."""
    judged = [
        task
        for group in groups
        if (task := [verdict for verdict in group.verdicts if verdict.scored])
    ]
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    return Summary(
        environment,
        level,
        len(groups),
        samples,
        {name: over_tasks(values) for name, values in _statistics(judged, parts)},
        attempts=len(rollouts),
        unscored=len(rollouts) - sum(map(len, judged)),
        audits_failed=sum(
            int(verdict.metrics.get("audit/failed", 0)) for task in judged for verdict in task
        ),
        clipped=fmean(rollout.finish == "length" for rollout in rollouts) if rollouts else 0.0,
        tokens=sum(sum(rollout.trainable) for rollout in rollouts),
    )


def _statistics(
    judged: Sequence[Sequence[Verdict]], parts: Collection[str]
) -> Iterator[tuple[str, list[float]]]:
    """By name: its value for each task."""
    if not judged:
        return
    yield "pass rate", [fmean(verdict.passed for verdict in task) for task in judged]
    yield "reward", [fmean(verdict.total for verdict in task) for task in judged]
    sizes = [
        k for k in powers(min(map(len, judged))) if k > 1
    ]  # of one sample there is nothing beside the mean
    for k in sizes:
        yield f"pass@{k}", [pass_at(k, [verdict.passed for verdict in task]) for task in judged]
    for k in sizes:
        yield f"max@{k}", [best_at(k, [verdict.total for verdict in task]) for task in judged]
    for k in sizes:
        yield (
            f"majority@{k}",
            [
                majority_at(k, [(verdict.answer, verdict.passed) for verdict in task])
                for task in judged
            ],
        )
    audits = [
        [verdict.metrics["audit"] for verdict in task if "audit" in verdict.metrics]
        for task in judged
    ]
    if any(audits):
        yield "audit", [fmean(task) for task in audits if task]
    for part in parts:
        yield (
            f"part {part}",
            [fmean(verdict.rewards[part].value for verdict in task) for task in judged],
        )
