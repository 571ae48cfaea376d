"""Print what several runs reached, and the means over their seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from rich.table import Column, Table

from grpo_core import ConfigError
from grpo_core.api.calls import PrintableConsole
from grpo_core.cli.output import print_line, remark
from grpo_report.over_runs import VALUES, Mean, RunGroup, RunResult, difference

_TITLES = {"reward": "reward", "pass_rate": "pass rate"}


def refuse_without_values(groups: Sequence[RunGroup]) -> None:
    """Raise ConfigError if no run can be compared."""
    if not any(group.scored for group in groups):
        raise ConfigError(
            "none of the runs is finished and has an evaluation after its training (eval.tasks), "
            "so there is no mean; continue them with grpo run --resume"
        )


def print_means(groups: Sequence[RunGroup]) -> None:
    """Print a table of the runs and of the mean of each group, then differences of the means."""
    shown = _short_names(groups)
    title = Column("held-out", overflow="fold")
    table = Table(title, "runs", "reward", "95 % interval", "pass rate", "95 % interval")
    for group in groups:
        for run in group.runs:
            table.add_row(shown[run.name], "", *_run_cells(run))
        means = [group.mean(name) for name in VALUES]
        cells = [cell for mean in means for cell in _mean_cells(mean)]
        table.add_row(f"mean {group.label}".strip(), str(len(group.scored)), *cells, style="bold")
        table.add_section()
    PrintableConsole().print(table)
    for group in groups[1:]:
        for name, title in _TITLES.items():
            if (mean := difference(groups[0], group, name)) is not None:
                print_line(
                    f"{group.label} against {groups[0].label}: {title} {mean.value:+.3f}"
                    f"{_interval(mean, ' (95 % interval {:+.3f} .. {:+.3f})')}"
                )
    left_out = [run.name for group in groups for run in group.runs if run not in group.scored]
    if left_out:
        remark(f"not in the means, as not finished or not evaluated: {', '.join(left_out)}")
    if any(len(group.scored) == 1 for group in groups):
        remark("a mean of one run has no interval; train more seeds with grpo run --seeds")


def _short_names(groups: Sequence[RunGroup]) -> dict[str, str]:
    """Return what the table calls each run: the name of its folder, if that tells them apart."""
    paths = [run.name for group in groups for run in group.runs]
    last = [Path(path).resolve().name for path in paths]
    return dict(zip(paths, last if len(set(last)) == len(last) else paths, strict=True))


def _run_cells(run: RunResult) -> list[str]:
    if not run.is_finished:
        return ["not finished", "", "", ""]
    if not run.values:
        return ["not evaluated", "", "", ""]
    return [f"{run.values['reward']:.3f}", "", f"{run.values['pass_rate']:.3f}", ""]


def _mean_cells(mean: Mean | None) -> list[str]:
    if mean is None:
        return ["", ""]
    return [f"{mean.value:.3f}", _interval(mean, "{:.3f} .. {:.3f}") or "-"]


def _interval(mean: Mean, text: str) -> str:
    """Return an interval as text; "" if there is none."""
    return "" if math.isnan(mean.low) else text.format(mean.low, mean.high)
