"""Summarize several attempts at each task as statistics with errors clustered by task.

The statistics are pass rates, rewards, majority votes and reward parts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from grpo_core.figures.statistics import Estimate, best_at, majority_at, over_tasks, pass_at, powers
from grpo_core.protocol.types import Group, Verdict
from grpo_core.words.unasked import Unasked

ALL_TASKS = "pass rate of all tasks"
"""Name of the pass rate in which tasks that cannot be asked count as not passed."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """The groups that were sampled at one level."""

    level: float
    groups: Sequence[Group[Any]]
    seconds: Sequence[float] = ()
    """The seconds of each verdict that was timed alone."""


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
    unasked: Sequence[Unasked] = ()
    """Tasks that cannot be asked. They are in no statistic but `ALL_TASKS`, and in no count; at an
    endpoint, where they count as not passed, they are in all but one."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a dictionary that JSON can hold; `unasked` only if there are any."""
        value = asdict(self)
        del value["unasked"]
        return value | (
            {"unasked": [each.to_json() for each in self.unasked]} if self.unasked else {}
        )


def summarize(
    groups: Sequence[Group[Any]],
    *,
    environment: str,
    level: float,
    samples: int,
    parts: Collection[str],
    unasked: Sequence[Unasked] = (),
) -> Summary:
    """Return the statistics of `groups`.

    "pass rate" and "reward" are means over samples. "pass@k", "max@k" (the best reward) and
    "majority@k" (the most frequent answer) are the expected values for k samples, for k = 2, 4, ...
    and the number of samples; where some samples could not be judged, k ends at the number that
    every task has left. "audit" is the mean of the environment's stricter check, if it has one.
    "part NAME" is the mean of a reward part, without its weight. Where there are tasks that cannot
    be asked (`unasked`), "pass rate of all tasks" counts them as not passed.
    """
    judged = scored_verdicts(groups)
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    return Summary(
        environment,
        level,
        len(groups),
        samples,
        {
            name: over_tasks(values)
            for name, values in _statistics(judged, parts, unasked=len(unasked))
        },
        attempts=len(rollouts),
        unscored=len(rollouts) - sum(map(len, judged)),
        audits_failed=sum(
            int(verdict.metrics.get("audit/failed", 0)) for task in judged for verdict in task
        ),
        clipped=fmean(rollout.finish == "length" for rollout in rollouts) if rollouts else 0.0,
        tokens=sum(rollout.sampled_tokens for rollout in rollouts),
        unasked=unasked,
    )


def scored_verdicts(groups: Sequence[Group[Any]]) -> list[list[Verdict]]:
    """Return the scored verdicts of each task that has any."""
    return [
        task
        for group in groups
        if (task := [verdict for verdict in group.verdicts if verdict.scored])
    ]


def _statistics(
    judged: Sequence[Sequence[Verdict]], parts: Collection[str], *, unasked: int
) -> Iterator[tuple[str, list[float]]]:
    """Yield the name of each statistic and its value for each task."""
    passed = [fmean(verdict.passed for verdict in task) for task in judged]
    if judged:
        yield "pass rate", passed
    if unasked:
        yield ALL_TASKS, [*passed, *[0.0] * unasked]
    if not judged:
        return
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
