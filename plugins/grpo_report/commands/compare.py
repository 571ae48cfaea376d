"""Implement `grpo compare`, which compares two runs or evaluations on the same tasks."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from grpo_core import TaskKey
from grpo_core.api.calls import PrintableConsole, printable
from grpo_core.cli.output import print_json, print_line, remark
from grpo_report.comparison import Comparison, Difference, Evaluation, compare, read_evaluation

app = typer.Typer()
_SHOWN_CHARS = 100


@app.command("compare", epilog="Example: grpo compare runs/first runs/second")
def compare_runs(
    a: Annotated[
        Path,
        typer.Argument(
            help="A run folder, a folder of `grpo eval --endpoint`, or a file of "
            "`grpo eval --attempts`.",
            metavar="A",
        ),
    ],
    b: Annotated[Path, typer.Argument(help="The other one.", metavar="B")],
    step: Annotated[
        int | None,
        typer.Option(
            "--step",
            help="Of runs: the evaluation after this step. \\[default: the last one]",
            show_default=False,
        ),
    ] = None,
    flips: Annotated[
        int, typer.Option("--flips", min=0, help="Tasks that are listed in each direction.")
    ] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Compare two runs or evaluations on the same held-out tasks, B against A.

    Differences are paired by task, with a 95 % interval and the p-value of a sign-flip test.
    Attempts that could not be judged are left out and counted. What a run gained over itself shows
    `grpo eval --recorded`.
    """
    first, second = (read_evaluation(path, step) for path in (a, b))
    comparison = compare(first, second)
    if as_json:
        print_json(_json(first, second, comparison))
        return
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
