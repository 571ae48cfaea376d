"""Implement `grpo report`, which writes runs as one HTML file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import DownloadColumn

from grpo_core import ConfigError
from grpo_core.cli.output import print_line, remark
from grpo_core.cli.progress import progress_bar
from grpo_report.commands.means import print_means
from grpo_report.html.opened import OpenRun, names_of
from grpo_report.html.single import write_single_file
from grpo_report.over_runs import grouped, read_result, run_folders, runs_in

app = typer.Typer()
Runs = Annotated[
    list[Path],
    typer.Argument(
        help="Run folders, finished or not, or a folder of runs; the first one is what others are "
        "compared with.",
        metavar="RUN...",
        readable=False,
        show_default=False,
    ),
]


@app.command("report", epilog="Example: grpo report runs/first runs/second --out report.html")
def report(
    runs: Runs,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="The file. \\[default: report.html in the first run's folder]",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write curves, groups, forensics and settings of runs as one HTML file, to be opened offline.

    The file holds all rollouts, or, where it would exceed 20 MB, a random sample, and says so. Of a
    folder of runs, as `grpo run --seeds` makes, the means over seeds are printed, too.
    """
    path = runs[0] / "report.html" if out is None else out
    if any(map(runs_in, runs)):
        runs = run_folders(runs)
        groups = grouped([read_result(folder) for folder in runs])
        if any(group.scored for group in groups):
            print_means(groups)
    with opened(runs) as open_runs:
        try:
            size = write_single_file(path, open_runs)
        except OSError as error:
            raise ConfigError(
                f"{path} cannot be written: {error.strerror or error}; name another file with --out"
            ) from None
    print_line(path)
    remark(f"{size / 1e6:.1f} MB; open it in a browser, it loads nothing from elsewhere")


@contextmanager
def opened(paths: Sequence[Path]) -> Iterator[list[OpenRun]]:
    """Open runs for the page, with a bar while their rollouts are indexed for the first time."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(_opened(path, name))
            for path, name in zip(paths, names_of(paths), strict=True)
        ]


@contextmanager
def _opened(path: Path, name: str) -> Iterator[OpenRun]:
    with progress_bar(f"indexing {name}", DownloadColumn()) as update:
        run = OpenRun(
            path, name=name, progress=lambda done, total: update(completed=done, total=total)
        )
    try:
        yield run
    finally:
        run.close()
