"""Print what `grpo env probe` has measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import typer
from rich.table import Table

from grpo_core.api.calls import PrintableConsole
from grpo_core.cli.output import MESSAGE_LIMIT, print_line
from grpo_kit.probing.probe_report import Bin, LevelReport, ProbeReport, Quantiles

_BAR_WIDTH = 8
_BAR_HEIGHTS = "▁▂▃▄▅▆▇█"


def print_report(report: ProbeReport, title: str, seconds: float) -> None:
    """Print the report of a probe as a table with a column for each level, and its conclusion.

    Args:
        report: the report.
        title: the line above the table.
        seconds: how long the probe took.
    """
    print_line(title, bold=True)
    table = Table("")
    for level in report.levels:
        table.add_column(f"level {level.level:g}", no_wrap=True)
    columns = [list(_cells(level)) for level in report.levels]
    row_keys = dict.fromkeys(row_key for column in columns for row_key, _ in column)
    for section in ("shares", "means", "rewards"):
        for row_key in (row_key for row_key in row_keys if row_key[0] == section):
            cells = [dict(column).get(row_key, "") for column in columns]
            if any(cells):
                table.add_row(row_key[1], *cells)
        table.add_section()
    PrintableConsole().print(table)
    print_line(
        "mixed: shares of tasks; verifier: wall clock of single verdicts, one at a time; "
        f"{seconds:.0f} s in all"
    )
    _print_conclusion(report)


def _print_conclusion(report: ProbeReport) -> None:
    if report.trainable:
        size = (
            "(none that was tried mixes half of the groups)"
            if report.group_size is None
            else str(report.group_size)
        )
        budget = (
            "" if report.max_new_tokens is None else f", max_new_tokens {report.max_new_tokens}"
        )
        print_line(f"suggested: level {report.level:g}, group_size {size}{budget}")
    for warning in report.warnings:
        print_line(
            f": {warning}", lead="warning", limit=MESSAGE_LIMIT, bold=True, fg=typer.colors.YELLOW
        )
    conclusion, colour = ("trainable", "green") if report.trainable else ("untrainable", "red")
    print_line(f": {report.reason}", lead=conclusion, bold=True, fg=colour)
    if report.advice:
        print_line(report.advice, limit=MESSAGE_LIMIT)


def _cells(level: LevelReport) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield ((section, row), text) for each cell in the table column of a level."""
    for k, probability in level.pass_at.items():
        yield ("shares", f"pass@{k}"), _bar(probability)
    for name, share in (
        ("mixed in passing", level.mixed_passed),
        ("mixed in reward", level.mixed_reward),
        ("no answer", level.unparsed),
        ("cut off", level.clipped),
        ("not judged", level.unscored),
    ):
        yield ("shares", name), "" if share is None else _bar(share)
    yield ("means", "trainable"), "yes" if level.trainable else "no"
    yield ("means", "tasks, attempts"), f"{level.tasks}, {level.attempts}"
    yield ("means", "tokens p50, p99"), _format_quantiles(level.tokens, ".0f")
    yield (
        ("means", "verifier ms p50, p99"),
        _format_quantiles(level.verify_seconds, ".1f", scale=1000),
    )
    yield ("means", "mean reward"), "" if level.reward is None else f"{level.reward:.3f}"
    for part, value in level.parts.items():
        yield ("means", f"part {part}"), f"{_sparkline(level.part_histograms[part])} {value:.3f}"
    for reward_bin in level.histogram:
        yield (
            ("rewards", f"reward {reward_bin.low:.3g} .. {reward_bin.high:.3g}"),
            _bar(reward_bin.share) if reward_bin.share else "",
        )


def _sparkline(histogram: Sequence[Bin]) -> str:
    """Return one character per bin, from the lowest value to the highest; a dot if it is empty."""
    heights = len(_BAR_HEIGHTS)
    return "".join(
        _BAR_HEIGHTS[min(heights - 1, int(value_bin.share * heights))] if value_bin.share else "·"
        for value_bin in histogram
    )


def _bar(share: float) -> str:
    """Return a horizontal bar and the share as a percentage."""
    blocks = "█" * round(_BAR_WIDTH * min(1.0, max(0.0, share)))
    return f"{blocks:<{_BAR_WIDTH}} {share:4.0%}"


def _format_quantiles(quantiles: Quantiles | None, spec: str, *, scale: float = 1) -> str:
    """Return "MEDIAN, P99", each times `scale` in the given format, or "" if there are none."""
    if quantiles is None:
        return ""
    return f"{quantiles.median * scale:{spec}}, {quantiles.p99 * scale:{spec}}"
