"""Implement `grpo compare`, which compares two runs or evaluations on the same tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from grpo_core import ConfigError, TaskKey
from grpo_core.api.calls import PrintableConsole, printable
from grpo_core.cli.output import print_json, print_line, remark
from grpo_report.commands.means import print_means, refuse_without_values
from grpo_report.comparison import Comparison, Difference, Evaluation, compare, read_evaluation
from grpo_report.over_runs import grouped, means_json, read_result, run_folders, runs_in

app = typer.Typer()
_SHOWN_CHARS = 100


@app.command("compare", epilog="Example: grpo compare runs/first runs/second")
def compare_runs(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Run folders, folders of runs as of `grpo run --seeds`; or two that may also be "
            "folders of `grpo eval --endpoint` or files of `grpo eval --attempts`.",
            metavar="RUN...",
            show_default=False,
        ),
    ],
    step: Annotated[
        int | None,
        typer.Option(
            "--step",
            help="Of two runs: the evaluation after this step. \\[default: the last one]",
            show_default=False,
        ),
    ] = None,
    flips: Annotated[
        int,
        typer.Option(
            "--flips", min=0, help="Of two runs: tasks that are listed in each direction."
        ),
    ] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Compare two runs on the same held-out tasks, or any number of runs by means over seeds.

    Of two, differences are paired by task, with a 95 % interval and the p-value of a sign-flip
    test. Attempts that could not be judged are left out and counted. What a run gained over itself
    shows `grpo eval --recorded`. Of several, or of a folder of runs, those that differ in their
    seed alone are averaged, with the 95 % interval of Student's t over runs.
    """
    if len(runs) != 2 or any(map(runs_in, runs)):
        _compare_means(runs, step, as_json=as_json)
        return
    first, second = (read_evaluation(path, step) for path in runs)
    comparison = compare(first, second)
    if as_json:
        print_json(_json(first, second, comparison))
        return
    _print_pair(first, second, comparison, flips)


def _compare_means(paths: Sequence[Path], step: int | None, *, as_json: bool) -> None:
    """Print the means of several runs.

    Raises:
        ConfigError: there is only one run, or none that was evaluated.
    """
    if step is not None:
        raise ConfigError("--step is for a comparison of two runs; remove it")
    folders = run_folders(paths)
    groups = grouped([read_result(folder) for folder in folders])
    if len(folders) < 2 and not runs_in(paths[0]):
        raise ConfigError(
            f"{paths[0]} is one run, and a comparison needs two or more, or a folder of runs; what "
            f"it gained over itself shows grpo eval --run {paths[0]} --recorded"
        )
    refuse_without_values(groups)
    if as_json:
        print_json({"groups": means_json(groups)})
    else:
        print_means(groups)


def _print_pair(first: Evaluation, second: Evaluation, comparison: Comparison, flips: int) -> None:
    """Print the differences of two evaluations, and the tasks that differ most."""
    table = Table("", "A", "B", "B - A", "95 % interval", "p", title_justify="left")
    for name, difference in (
        ("reward", comparison.reward),
        ("pass rate", comparison.pass_rate),
    ):
        table.add_row(name, *_cells(difference))
    print_line(f"A: {first.name}")
    print_line(f"B: {second.name}")
    PrintableConsole().print(table)
    tasks = comparison.reward.gain.tasks
    print_line(
        f"{tasks} tasks; B passes {len(comparison.better)} more often, A {len(comparison.worse)}, "
        f"and {tasks - len(comparison.better) - len(comparison.worse)} as often"
    )
    for title, keys in (("B is better", comparison.better), ("A is better", comparison.worse)):
        for key in keys[:flips]:
            print_line(f"{title}: {_flip(key, first, second)}")
    if comparison.only_one:
        remark(f"{comparison.only_one} tasks that only one of them has were left out")
    if first.errors or second.errors:
        remark(f"could not be judged: {first.errors} attempts of A, {second.errors} of B")


def _cells(difference: Difference) -> list[str]:
    gain = difference.gain
    return [
        f"{gain.before:.3f}",
        f"{gain.after:.3f}",
        f"{gain.mean:+.3f}",
        f"{gain.low:+.3f} .. {gain.high:+.3f}",
        f"{difference.p_value:.4f}",
    ]


def _flip(key: TaskKey, first: Evaluation, second: Evaluation) -> str:
    a, b = first.tasks[key], second.tasks[key]
    said = printable(b.texts[0], lines=False, limit=_SHOWN_CHARS)
    return (
        f"{key.env} {key.split} {key.index} (level {key.level:g}): {a.pass_rate:.0%} -> "
        f"{b.pass_rate:.0%} pass; B says: {said}"
    )


def _json(first: Evaluation, second: Evaluation, comparison: Comparison) -> dict[str, Any]:
    return {
        "a": first.name,
        "b": second.name,
        "tasks": comparison.reward.gain.tasks,
        "only_one": comparison.only_one,
        "errors": [first.errors, second.errors],
        **{
            name: {**asdict(difference.gain), "mean": difference.gain.mean, "p": difference.p_value}
            for name, difference in (
                ("reward", comparison.reward),
                ("pass_rate", comparison.pass_rate),
            )
        },
        "better": [asdict(key) for key in comparison.better],
        "worse": [asdict(key) for key in comparison.worse],
    }
