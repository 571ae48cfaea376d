"""Turn metrics.jsonl into columns for charts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import sqrt
from statistics import fmean, stdev
from typing import Any

from grpo_core import ConfigError
from grpo_core.api.runs import JsonObject, Kind, kind_of
from grpo_core.figures.statistics import t_quantile
from grpo_report.indexes.index import Filter, RolloutIndex

Columns = dict[str, list[float | None]]
"""The values of each metric by step; None where it was not measured."""


def chart_series(lines: Iterable[JsonObject], index: RolloutIndex) -> dict[str, Any]:
    """Return the columns of the steps and of the evaluations of a run.

    Evaluations have intervals of 95 % over their tasks, where the log holds their rollouts.

    Args:
        lines: the lines of metrics.jsonl; those of an unknown kind, as a newer version may write,
            are left out.
        index: the rollouts of the run.

    Raises:
        ConfigError: a line names no step.
    """
    of_kind: dict[Kind, list[JsonObject]] = {kind: [] for kind in Kind}
    for line in lines:
        if "kind" not in line or line["kind"] in list(Kind):
            of_kind[kind_of(line)].append(line)
    steps, evaluations = columns_of(of_kind[Kind.STEP]), columns_of(of_kind[Kind.EVALUATION])
    return {
        "steps": {"columns": steps},
        "evaluations": {
            "columns": evaluations,
            "intervals": _intervals(index, evaluations.get("step", [])),
        },
    }


def columns_of(lines: Sequence[Mapping[str, Any]]) -> Columns:
    """Return the numbers of the lines by name; a repeated step keeps its last line.

    Raises:
        ConfigError: a line names no step.
    """
    for line in lines:
        if type(line.get("step")) is not int:
            raise ConfigError(
                f"metrics.jsonl has a line whose step is {line.get('step')!r}, not a whole number; "
                "remove the line, or name another run"
            )
    by_step = {line["step"]: line for line in lines}
    kept = [by_step[step] for step in sorted(by_step)]
    names = dict.fromkeys(name for line in kept for name in line)
    return {
        name: [_number(line.get(name)) for line in kept]
        for name in names
        if any(_number(line.get(name)) is not None for line in kept)
    }


def _number(value: Any) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if is_number else None


def _intervals(index: RolloutIndex, steps: Sequence[float | None]) -> dict[str, Any]:
    """Return the bounds of mean reward and pass rate of each evaluation, clustered by task."""
    rewards: defaultdict[int, defaultdict[tuple[str, int], list[tuple[float, bool]]]]
    rewards = defaultdict(lambda: defaultdict(list))
    for row in index.rollouts(Filter(split="eval"), limit=-1):
        if row.reward is not None:
            rewards[row.step][row.environment, row.task].append((row.reward, row.passed))
    intervals: dict[str, Any] = {}
    for name, place in (("reward/mean", 0), ("pass_rate", 1)):
        bounds = [
            _interval([fmean(pair[place] for pair in task) for task in rewards[int(step)].values()])
            if step is not None and int(step) in rewards
            else (None, None)
            for step in steps
        ]
        if any(low is not None for low, _ in bounds):
            intervals[name] = {
                "low": [low for low, _ in bounds],
                "high": [high for _, high in bounds],
            }
    return intervals


def _interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    if len(values) < 2:
        return None, None
    mean = fmean(values)
    half = t_quantile(0.975, len(values) - 1) * stdev(values) / sqrt(len(values))
    return mean - half, mean + half
