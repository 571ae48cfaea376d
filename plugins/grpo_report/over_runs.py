"""Average what several runs reached: a mean over seeds with its interval, for each setting.

Runs that differ in their seed alone make a group. The interval of a mean is that of Student's t
over runs, as runs are what the seed makes independent; tasks within a run are not.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from grpo_core import ConfigError
from grpo_core.api.runs import JsonObject, Kind, RunFolder, kind_of, names_in
from grpo_core.figures.statistics import t_quantile

VALUES = {"reward": "eval/reward/mean", "pass_rate": "eval/pass_rate"}
"""What is compared, and its name in the line of an evaluation."""
_NOT_SETTINGS = {"provenance", "seed", "digest"}


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over runs, with its 95 % interval."""

    value: float
    low: float
    """The lower end; NaN for one run."""
    high: float
    """The upper end; NaN for one run."""
    runs: int
    """The number of runs."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """Hold the results of a run in its last evaluation on held-out tasks."""

    name: str
    seed: int
    settings: Mapping[str, Any]
    """All settings but the seed, by dotted names."""
    values: Mapping[str, float]
    """By the names of `VALUES`; empty if it was not evaluated after its training."""
    is_finished: bool


@dataclass(frozen=True, slots=True)
class RunGroup:
    """Runs that differ in their seed alone."""

    label: str
    """The settings in which the group differs from other ones; "" if there is only one."""
    runs: tuple[RunResult, ...]

    @property
    def scored(self) -> list[RunResult]:
        """Return the runs that the mean is over: those that are finished and were evaluated."""
        return [run for run in self.runs if run.is_finished and run.values]

    def mean(self, name: str) -> Mean | None:
        """Return the mean of a value over the scored runs; None if there are none."""
        values = [run.values[name] for run in self.scored]
        return mean_over_runs(values) if values else None


def mean_over_runs(values: Sequence[float]) -> Mean:
    """Return the mean of one value of each run, with the interval of Student's t."""
    mean = fmean(values)
    if len(values) < 2:
        return Mean(mean, math.nan, math.nan, len(values))
    margin = t_quantile(0.975, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return Mean(mean, mean - margin, mean + margin, len(values))


def difference(first: RunGroup, second: RunGroup, name: str) -> Mean | None:
    """Return how much more the second group reached, with its 95 % interval.

    Where both have the same seeds, runs are paired by seed, since these share their tasks; else it
    is the interval of Welch for two samples.

    Args:
        first: the group that is compared with.
        second: the other group.
        name: one of `VALUES`.

    Returns:
        The difference of the means; None if a group has no scored run.
    """
    a = {run.seed: run.values[name] for run in first.scored}
    b = {run.seed: run.values[name] for run in second.scored}
    if not a or not b:
        return None
    is_paired = a.keys() == b.keys() and len(a) == len(first.scored) == len(b) == len(second.scored)
    if is_paired:
        return mean_over_runs([b[seed] - a[seed] for seed in a])
    return _welch(
        [run.values[name] for run in first.scored], [run.values[name] for run in second.scored]
    )


def _welch(a: Sequence[float], b: Sequence[float]) -> Mean:
    """Return the difference of two means of independent samples, with the interval of Welch."""
    mean, runs = fmean(b) - fmean(a), min(len(a), len(b))
    if runs < 2:
        return Mean(mean, math.nan, math.nan, runs)
    parts = [stdev(values) ** 2 / len(values) for values in (a, b)]
    variance = sum(parts)
    if variance == 0:
        return Mean(mean, mean, mean, runs)
    freedom = variance**2 / sum(
        part**2 / (len(values) - 1) for part, values in zip(parts, (a, b), strict=True)
    )
    # The whole number below it makes the interval wider, never narrower.
    margin = t_quantile(0.975, max(1, math.floor(freedom))) * math.sqrt(variance)
    return Mean(mean, mean - margin, mean + margin, runs)


def run_folders(paths: Sequence[Path]) -> list[Path]:
    """Return the runs that paths name; a folder of several runs stands for these.

    Raises:
        ConfigError: a path is neither a run nor a folder of runs.
    """
    folders: list[Path] = []
    for path in paths:
        inner = runs_in(path)
        if not inner and not os.path.lexists(path / "config.json"):
            raise ConfigError(
                f"{path} holds no run, and no folder of runs; name run folders, or the --out of "
                "grpo run --seeds"
            )
        folders += inner or [path]
    return folders


def runs_in(path: Path) -> list[Path]:
    """Return the runs in a folder that holds several, such as one of `grpo run --seeds`."""
    if os.path.lexists(path / "config.json") or not path.is_dir():
        return []
    try:
        names = sorted(names_in(path), key=_by_number)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from None
    return [path / name for name in names if os.path.lexists(path / name / "config.json")]


def _by_number(name: str) -> list[tuple[int, str]]:
    """Return a key by which seed-2 comes before seed-10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)]


def read_result(path: Path) -> RunResult:
    """Return what a run reached.

    Raises:
        ConfigError: it holds no run, or is damaged.
    """
    folder = RunFolder.open(path)
    config = folder.config()
    last: JsonObject = {}
    for line in folder.metric_lines():
        if kind_of(line) is Kind.EVALUATION and line["step"] > 0:
            last = line
    values = {name: last.get(column) for name, column in VALUES.items()}
    settings = {key: value for key, value in config.items() if key not in _NOT_SETTINGS}
    seed = config.get("seed", 0)
    return RunResult(
        str(path),
        seed if isinstance(seed, int) else 0,
        dict(_flat(settings)),
        {}
        if None in values.values()
        else {k: float(v) for k, v in values.items() if v is not None},
        folder.finished,
    )


def means_json(groups: Sequence[RunGroup]) -> list[dict[str, Any]]:
    """Return the runs, the means and the differences as values for JSON."""
    return [
        {
            "label": group.label,
            "runs": [
                {"run": run.name, "seed": run.seed, "finished": run.is_finished, **run.values}
                for run in group.runs
            ],
            **{name: mean and asdict(mean) for name in VALUES for mean in [group.mean(name)]},
            "against_first": {
                name: mean and asdict(mean)
                for name in VALUES
                for mean in [difference(groups[0], group, name)]
                if group is not groups[0]
            },
        }
        for group in groups
    ]


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield settings by their dotted names."""
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def grouped(results: Sequence[RunResult]) -> list[RunGroup]:
    """Return groups of runs that differ in their seed alone, in the order of their first runs."""
    by_settings: dict[str, list[RunResult]] = {}
    for result in results:
        by_settings.setdefault(json.dumps(result.settings, sort_keys=True), []).append(result)
    members = list(by_settings.values())
    keys = dict.fromkeys(key for runs in members for key in runs[0].settings)
    differing = [
        key
        for key in keys
        if len({json.dumps(runs[0].settings.get(key), sort_keys=True) for runs in members}) > 1
    ]
    return [
        RunGroup(
            ", ".join(f"{key}={_shown(runs[0].settings.get(key))}" for key in differing),
            tuple(runs),
        )
        for runs in members
    ]


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
