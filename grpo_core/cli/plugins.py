"""Implement `grpo plugins`, which lists the installed plugins and says why one does not work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from grpo_core.cli.output import MESSAGE_LIMIT, QuickCommand, print_columns, print_json, print_line
from grpo_core.kit.plugins import PluginStatus, all_statuses
from grpo_core.plugins.host import PluginHost
from grpo_core.protocol.hookspecs import OFFER_HOOKS, Kind

app = typer.Typer()

LISTED = 10
"""Most components of one kind that are listed by their names."""


@app.command(cls=QuickCommand, epilog="Example: grpo plugins --check")
def plugins(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON array for programs.")
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Load each plugin in a process of its own, time its import, "
            "and exit with 1 if one fails.",
        ),
    ] = False,
    timeout_seconds: Annotated[
        float,
        typer.Option(
            "--timeout", min=0.1, help="With --check: timeout in seconds for loading one plugin."
        ),
    ] = 30.0,
) -> None:
    """List the installed plugins and the components that they offer.

    For each plugin that cannot be used, print the reason and the fix.
    """
    statuses = all_statuses(PluginHost(), timeout_seconds=timeout_seconds if check else None)
    if as_json:
        print_json([asdict(status) for status in statuses])
    else:
        _print_table(statuses)
    if check and any(status.status == "failed" for status in statuses):
        raise typer.Exit(1)


def _format_names(kind: Kind, names: Sequence[str]) -> str:
    """Return the names of some components of one kind, or their number if there are many."""
    kinds = kind if len(names) == 1 else OFFER_HOOKS[kind].removeprefix("grpo_")
    return f"{len(names)} {kinds}" if len(names) > LISTED else f"{kinds} {', '.join(names)}"


def _print_table(statuses: list[PluginStatus]) -> None:
    rows = []
    for status in statuses:
        offers = "; ".join(_format_names(kind, names) for kind, names in status.offers.items())
        seconds = "" if status.import_seconds is None else f"{status.import_seconds:.2f} s"
        rows.append(
            (status.name, f"{status.distribution} {status.version}", status.status, seconds, offers)
        )
    print_columns(("plugin", "distribution", "status", "import", "offers"), rows)
    for status in statuses:
        if status.reason:
            plugin = f"{status.name} ({status.distribution} {status.version})"
            message = f"{plugin}: {status.reason}; {status.fix}"
            print_line(message, limit=MESSAGE_LIMIT, fg=typer.colors.RED)
