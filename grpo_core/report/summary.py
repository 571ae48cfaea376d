"""Summarize several attempts at each task as statistics with errors clustered by task.

The statistics are pass rates, rewards, majority votes and reward parts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from grpo_core.protocol.types import Group, Verdict
from grpo_core.report.statistics import Estimate, best_at, majority_at, over_tasks, pass_at, powers


@dataclass(frozen=True, slots=True)
class Summary:
    """The statistics of one environment at one level."""

    environment: str
    level: float
    tasks: int
    """The number of tasks that were sampled."""
    samples: int
    """Attempts that were asked for at each task."""
    statistics: dict[str, Estimate] = field(default_factory=dict)
    """The statistics by name."""
    attempts: int = 0
    unscored: int = 0
    """Attempts that could not be judged; they are in no statistic."""
    audits_failed: int = 0
    """Audits that gave no value although one was due."""
    clipped: float = 0.0
    """The share of attempts that reached their token budget."""
    tokens: int = 0
    """The number of tokens that the policy wrote."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a dictionary that JSON can hold."""
        return asdict(self)


def summarize(
    groups: Sequence[Group[Any]],
    *,
    environment: str,
    level: float,
    samples: int,
    parts: Collection[str],
) -> Summary:
    """Return the statistics of `groups`.

    "pass rate" and "reward" are means over samples. "pass@k", "max@k" (the best reward) and
    "majority@k" (the most frequent answer) are the expected values for k samples, for k = 2, 4, ...
    and the number of samples; where some samples could not be judged, k ends at the number that
    every task has left. "audit" is the mean of the environment's stricter check, if it has one.
    "part NAME" is the mean of a reward part, without its weight.
    """
    judged = scored_verdicts(groups)
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
        tokens=sum(rollout.sampled_tokens for rollout in rollouts),
    )


def scored_verdicts(groups: Sequence[Group[Any]]) -> list[list[Verdict]]:
    """Return the scored verdicts of each task that has any."""
    return [
        task
        for group in groups
        if (task := [verdict for verdict in group.verdicts if verdict.scored])
    ]


def _statistics(
    judged: Sequence[Sequence[Verdict]], parts: Collection[str]
) -> Iterator[tuple[str, list[float]]]:
    """Yield the name of each statistic and its value for each task."""
    if not judged:
        return
    yield "pass rate", [fmean(verdict.passed for verdict in task) for task in judged]
    yield "reward", [fmean(verdict.total for verdict in task) for task in judged]
    # for k = 1 these statistics equal the means above
    sizes = [k for k in powers(min(map(len, judged))) if k > 1]
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
