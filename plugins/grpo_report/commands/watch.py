"""Implement `grpo watch`, which shows a run while it goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grpo_core.cli.output import print_line, remark
from grpo_report.commands.report import opened
from grpo_report.html.server import ReportData, ReportServer
from grpo_report.terminal.screen import show_in_terminal

app = typer.Typer()


@app.command("watch", epilog="Example: grpo watch runs/first")
def watch(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Run folders, finished or not.",
            metavar="RUN...",
            readable=False,
            show_default=False,
        ),
    ],
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port of the page; 0: a free one.")
    ] = 0,
    text: Annotated[
        bool, typer.Option("--text", help="Show the first run in the terminal instead.")
    ] = False,
) -> None:
    """Show runs live: as a page for this machine's browser, or in the terminal.

    The page is that of `grpo report` with every rollout. Its address holds a secret, and only
    programs on this machine reach it. Ctrl-C ends it.
    """
    with opened(runs) as open_runs:
        if text:
            show_in_terminal(open_runs[0])
            return
        with ReportServer(ReportData(open_runs), port=port) as server:
            print_line(server.url)
            remark("open this address in a browser of this machine; Ctrl-C ends it")
            try:
                server.serve_forever()
            except KeyboardInterrupt:
                remark("ended")
