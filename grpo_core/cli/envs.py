"""Implement `grpo envs`, which lists the environments."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from grpo_core.cli.output import QuickCommand, print_columns, print_json, print_line, remark
from grpo_core.plugins.host import PluginHost

app = typer.Typer()


@app.command(cls=QuickCommand, epilog="Example: grpo envs --json")
def envs(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """List the environments that can be trained on."""
    host = PluginHost()
    offers = host.specs("environment")
    rows = [
        {
            "name": offer.spec.name,
            "distribution": offer.plugin.distribution,
            "version": offer.plugin.version,
            "summary": next(iter((offer.spec.summary or "").strip().splitlines()), ""),
            "extra": offer.spec.extra,
        }
        for offer in offers
    ]
    if as_json:
        print_json(rows)
    else:
        _print_environments(rows)
    if host.failures:
        remark(
            f"{len(host.failures)} of the installed plugins cannot be used; "
            "`grpo plugins` says why."
        )


def _print_environments(rows: list[dict[str, Any]]) -> None:
    if not rows:
        print_line(
            "No environment is installed. An environment is a pip package: "
            "pip install grpo-env-NAME"
        )
        return
    titles = ("environment", "distribution", "about")
    print_columns(
        titles,
        [(row["name"], f"{row['distribution']} {row['version']}", row["summary"]) for row in rows],
    )
