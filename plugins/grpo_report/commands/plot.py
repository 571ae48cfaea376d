"""Implement `grpo plot`, which draws the metrics of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grpo_core import ConfigError
from grpo_core.api.runs import RunFolder
from grpo_core.cli.output import print_line
from grpo_report.plots import draw_plots

app = typer.Typer()


@app.command(epilog="Example: grpo plot runs/first --out pictures")
def plot(
    run: Annotated[
        Path,
        typer.Argument(help="A run folder, finished or not.", readable=False, show_default=False),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Folder for the pictures. \\[default: the run's]",
            readable=False,
            show_default=False,
        ),
    ] = None,
) -> None:
    """Draw reward and pass rate, KL, reward parts and the time per phase, as PNG and SVG."""
    RunFolder.open(run)
    try:
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
        paths = draw_plots(run, out, kinds=("png", "svg"))
    except OSError as error:
        raise ConfigError(f"the pictures cannot be written: {error}") from None
    if not paths:
        raise ConfigError(f"{run} has no step in its metrics.jsonl yet; nothing was drawn")
    for path in paths:
        print_line(path)
