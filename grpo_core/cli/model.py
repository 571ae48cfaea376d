"""Implement `grpo model`, which downloads models and lists those on this machine."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from grpo_core.cli.imports import needs_training
from grpo_core.cli.output import print_columns, print_json, print_line
from grpo_core.config.modelcache import ALIASES, DEFAULT_MODEL, cached_models

app = typer.Typer()


@app.command()
def pull(
    name: Annotated[
        str,
        typer.Argument(help=f"A hub id ORG/NAME[@REVISION], or an alias such as {DEFAULT_MODEL}."),
    ] = DEFAULT_MODEL,
    trust_remote_code: Annotated[
        bool,
        typer.Option(
            help="Also download the model's own Python code, which runs when it is loaded."
        ),
    ] = False,
) -> None:
    """Download a model so that later runs need no network, or update a cached hub model.

    Example: grpo model pull smollm2-135m
    """
    with needs_training("`grpo model pull`"):
        from grpo_core.engine.models.load import resolve
        from grpo_core.engine.models.source import local_folder
    print_line(local_folder(resolve(name, trust_remote_code=trust_remote_code, refresh=True)))


@app.command("list")
def list_models(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print [{name, path}] for programs.")
    ] = False,
) -> None:
    """List the models that need no network, then the aliases that can be downloaded.

    Example: grpo model list --json
    """
    models = cached_models()
    if as_json:
        print_json([asdict(model) for model in models])
        return
    if models:
        print_columns(("model", "folder"), [(model.name, model.path) for model in models])
    else:
        print_line("No model is cached yet.")
    for alias in ALIASES.values():
        if alias.name not in {model.name for model in models}:
            print_line(f"`grpo model pull {alias.name}` downloads {alias.summary}")
