"""Implement `grpo env new`, which writes a complete environment package to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from grpo_core.cli.output import print_line
from grpo_core.kit.new import write_project

app = typer.Typer()


@app.command(epilog="Example: grpo env new word-sums --kind text")
def new(
    name: Annotated[
        str,
        typer.Argument(
            help="Name of the environment: lowercase letters, digits and dashes.",
            show_default=False,
        ),
    ],
    kind: Annotated[
        Literal["text", "code", "judge", "dialogue", "dataset"],
        typer.Option(
            "--kind",
            help="text: an exact answer; code: a function, run in a sandbox; "
            "judge: a text that a model scores; dialogue: several turns; "
            "dataset: rows of a file.",
        ),
    ] = "text",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Folder to create. \\[default: grpo-env-NAME]",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write the package of a new environment with tests, ready to install and to train on."""
    project = write_project(name, kind=kind, folder=out)
    print_line(f"{project.folder} holds a complete environment. What to do next:")
    print_line()
    for command in project.commands:
        print_line(f"    {command}")
