"""Implement `grpo new ...`, which writes a complete package to start from.

`grpo env new` is `grpo new env`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from grpo_core.cli.output import print_line
from grpo_kit.scaffold.new import Project, write_project
from grpo_kit.scaffold.new_plugin import write_plugin

app = typer.Typer()

Name = Annotated[
    str,
    typer.Argument(
        help="Name of what the package offers: lowercase letters, digits and dashes.",
        show_default=False,
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="DIR",
        help="Folder to create. \\[default: grpo-KIND-NAME]",
        show_default=False,
    ),
]


@app.command("env", epilog="Example: grpo new env word-sums --kind text")
@app.command("new", epilog="Example: grpo env new word-sums --kind text")
def env(
    name: Annotated[
        str,
        typer.Argument(
            help="Name of the environment: lowercase letters, digits and dashes.",
            show_default=False,
        ),
    ],
    kind: Annotated[
        Literal["text", "code", "judge", "dialogue", "episode", "terminal", "agent", "dataset"],
        typer.Option(
            "--kind",
            help="text: an exact answer; code: a function, run in a sandbox; "
            "judge: a text that a model scores; dialogue: several turns; "
            "episode: several turns with state; terminal: a shell in a sandbox; "
            "agent: code that calls the policy; dataset: rows of a file.",
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
    _print_next(write_project(name, kind=kind, folder=out), "environment")


@app.command(epilog="Example: grpo new judge kindness")
def judge(name: Name, out: Out = None) -> None:
    """Write the package of a new judge, which scores texts, with tests."""
    _print_next(write_plugin("judge", name, folder=out), "judge")


@app.command(epilog="Example: grpo new sandbox my-cloud")
def sandbox(name: Name, out: Out = None) -> None:
    """Write the package of a new sandbox, which runs untrusted programs, with tests."""
    _print_next(write_plugin("sandbox", name, folder=out), "sandbox")


@app.command(epilog="Example: grpo new sampler my-engine")
def sampler(name: Name, out: Out = None) -> None:
    """Write the package of a new sampler, which draws completions, with tests."""
    _print_next(write_plugin("sampler", name, folder=out), "sampler")


@app.command(epilog="Example: grpo new executor my-cluster")
def executor(name: Name, out: Out = None) -> None:
    """Write the package of a new executor, which verifies elsewhere, with tests."""
    _print_next(write_plugin("executor", name, folder=out), "executor")


@app.command(epilog="Example: grpo new algorithm median")
def algorithm(name: Name, out: Out = None) -> None:
    """Write the package of a new advantage estimator and a new loss, with tests."""
    _print_next(write_plugin("algorithm", name, folder=out), "algorithm")


@app.command(epilog="Example: grpo new tracker csv-file")
def tracker(name: Name, out: Out = None) -> None:
    """Write the package of a new tracker, which shows the metrics of a run, with tests."""
    _print_next(write_plugin("tracker", name, folder=out), "tracker")


@app.command(epilog="Example: grpo new recipe quick")
def recipe(name: Name, out: Out = None) -> None:
    """Write the package of a new recipe, settings that belong together, with tests."""
    _print_next(write_plugin("recipe", name, folder=out), "recipe")


def _print_next(project: Project, what: str) -> None:
    """Say what the folder of a new project holds, and what to do next."""
    print_line(f"{project.folder} holds a complete {what}. What to do next:")
    print_line()
    for command in project.commands:
        print_line(f"    {command}")
