"""Implement `grpo plugins` and `grpo envs`: what is installed, and why a plugin does not work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from grpo_core.cli.output import (
    MESSAGE_LIMIT,
    QuickCommand,
    print_columns,
    print_json,
    print_line,
    remark,
)
from grpo_core.kit.plugins import PluginStatus, all_statuses
from grpo_core.plugins.host import PluginHost
from grpo_core.protocol.hookspecs import OFFER_HOOKS, Kind

app = typer.Typer()

LISTED = 10
"""Most components of one kind that are listed by their names."""


@app.command(cls=QuickCommand, epilog="Example: grpo plugins --check")
def plugins(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...",
            help="Only these plugins; all of them if left out.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON array for programs.")
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Load each plugin and what it offers in a process of its own, time the plugin's "
            "import, and exit with 1 if something fails or lacks its extra.",
        ),
    ] = False,
    timeout_seconds: Annotated[
        float,
        typer.Option(
            "--timeout", min=0.1, help="With --check: timeout in seconds for loading one plugin."
        ),
    ] = 60.0,
) -> None:
    """List the installed plugins and the components that they offer.

    For each plugin that cannot be used, print the reason and the fix.
    """
    statuses = all_statuses(
        PluginHost(), names or (), timeout_seconds=timeout_seconds if check else None
    )
    if as_json:
        print_json([asdict(status) for status in statuses])
    else:
        _print_table(statuses)
    if check and any(status.status == "failed" for status in statuses):
        raise typer.Exit(1)


@app.command(cls=QuickCommand, epilog="Example: grpo envs --json")
def envs(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """List the environments that can be trained on."""
    host = PluginHost()
    rows = [
        {
            "name": offer.spec.name,
            "distribution": offer.plugin.distribution,
            "version": offer.plugin.version,
            "summary": next(iter((offer.spec.summary or "").strip().splitlines()), ""),
            "extra": offer.spec.extra,
        }
        for offer in host.specs("environment")
    ]
    if as_json:
        print_json(rows)
    elif rows:
        print_columns(
            ("environment", "distribution", "about"),
            [
                (str(row["name"]), f"{row['distribution']} {row['version']}", str(row["summary"]))
                for row in rows
            ],
        )
    else:
        print_line(
            "No environment is installed. An environment is a pip package: "
            "pip install grpo-env-NAME"
        )
    if host.failures:
        remark(
            f"{len(host.failures)} of the installed plugins cannot be used; "
            "`grpo plugins` says why."
        )


def _format_names(kind: Kind, names: Sequence[str]) -> str:
    """Return the names of some components of one kind, or their number if there are many."""
    kinds = kind if len(names) == 1 else OFFER_HOOKS[kind].removeprefix("grpo_")
    return f"{len(names)} {kinds}" if len(names) > LISTED else f"{kinds} {', '.join(names)}"


def _print_table(statuses: list[PluginStatus]) -> None:
    print_columns(
        ("plugin", "distribution", "status", "import", "offers"),
        [
            (
                status.name,
                f"{status.distribution} {status.version}",
                status.status,
                "" if status.import_seconds is None else f"{status.import_seconds:.2f} s",
                "; ".join(_format_names(kind, names) for kind, names in status.offers.items()),
            )
            for status in statuses
        ],
    )
    for status in statuses:
        if status.reason:
            print_line(
                f"{status.name} ({status.distribution} {status.version}): {status.reason}; "
                f"{status.fix}",
                limit=MESSAGE_LIMIT,
                fg=typer.colors.RED,
            )
