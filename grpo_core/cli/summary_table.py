"""Print the statistics of an evaluation as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table

from grpo_core.calls.console import PrintableConsole
from grpo_core.cli.output import print_line
from grpo_core.figures.summary import Summary
from grpo_core.words.unasked import name_unasked


def print_summaries(
    model: str,
    summaries: Sequence[Summary],
    seconds: float,
    *,
    counts: Mapping[str, Sequence[int]] | None = None,
) -> None:
    """Print a column of statistics for each environment and level.

    Args:
        model: what was measured.
        summaries: the statistics.
        seconds: how long it took.
        counts: further rows, by their titles, with a number for each summary; a row without a
            number above 0 is left out.
    """
    several = len({summary.environment for summary in summaries}) > 1
    table = Table(
        "",
        title=f"{model}: {summaries[0].samples} samples of each held-out task",
        title_justify="left",
    )
    for summary in summaries:
        name = f"{summary.environment}, " if several else ""
        table.add_column(f"{name}level {summary.level:g}", justify="right")
    for statistic in dict.fromkeys(name for summary in summaries for name in summary.statistics):
        estimates = [summary.statistics.get(statistic) for summary in summaries]
        table.add_row(
            statistic, *(f"{e.value:.3f} ± {e.error:.3f}" if e else "" for e in estimates)
        )
    table.add_section()
    table.add_row("tasks", *(str(summary.tasks) for summary in summaries))
    table.add_row("cut off at the budget", *(f"{summary.clipped:.0%}" for summary in summaries))
    rows = {
        **(counts or {}),
        "cannot be asked": [len(summary.unasked) for summary in summaries],
        "could not be judged": [summary.unscored for summary in summaries],
        "audits that failed": [summary.audits_failed for summary in summaries],
    }
    for title, numbers in rows.items():
        if any(numbers):
            table.add_row(title, *map(str, numbers))
    PrintableConsole().print(table)
    for summary in summaries:
        if summary.unasked:
            print_line(f"cannot be asked: {name_unasked(summary.unasked)}")
    print_line(
        "± is the standard error over tasks (bootstrap); "
        f"{sum(summary.tokens for summary in summaries)} tokens in {seconds:.0f} s"
    )
