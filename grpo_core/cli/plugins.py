"""Implement `grpo plugins` and `grpo envs`: what is installed, and why a plugin does not work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from typing import Annotated, Any

import typer

from grpo_core.cli.commands import command_tree
from grpo_core.cli.output import (
    MESSAGE_LIMIT,
    QuickCommand,
    print_columns,
    print_json,
    print_line,
    remark,
)
from grpo_core.cli.plugin_commands import installed_commands
from grpo_core.plugins.host import PluginHost
from grpo_core.plugins.statuses import PluginStatus, all_statuses
from grpo_core.plugins.versions import packages
from grpo_core.protocol.hookspecs import OFFER_HOOKS, Kind
from grpo_core.protocol.spec import extra_owner

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
    for problem in command_tree(installed_commands())[1]:
        remark(problem)
    if check and any(status.status == "failed" for status in statuses):
        raise typer.Exit(1)


@app.command(cls=QuickCommand, epilog="Example: grpo envs --json")
def envs(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
    every: Annotated[
        bool, typer.Option("--all", help="List every environment of a plugin that offers many.")
    ] = False,
) -> None:
    """List the environments that can be trained on.

    Those whose extra is not installed stand at the end, with the command that installs it.
    """
    host = PluginHost()
    install = cache(_install_command)  # many environments have the same extra
    rows = [
        {
            "name": offer.spec.name,
            "distribution": offer.plugin.distribution,
            "version": offer.plugin.version,
            "summary": next(iter((offer.spec.summary or "").strip().splitlines()), ""),
            "extra": offer.spec.extra,
            "install": install(offer.spec.distribution, offer.spec.extra),
        }
        for offer in host.specs("environment")
    ]
    rows.sort(key=lambda row: row["install"] is not None)
    if as_json:
        print_json(rows)
    elif rows:
        print_columns(
            ("environment", "distribution", "about"),
            [_environment_row(row) for row in (rows if every else _shortened(rows))],
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


def _install_command(distribution: str, extra: str | None) -> str | None:
    """Return the command that installs an extra, or None if all its packages are installed."""
    if extra is None:
        return None
    owner = extra_owner(distribution, extra)
    is_missing = any(package.state == "missing" for package in packages(owner, extra))
    return f"pip install '{owner}[{extra}]'" if is_missing else None


def _environment_row(row: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the table cells of an environment."""
    extra = f"(needs {row['install']}) " if row["install"] else ""
    return (
        row["name"],
        f"{row['distribution']} {row['version']}",
        f"{extra}{row['summary']}",
    )


def _shortened(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with one row in place of the many of a plugin, as of "reasoning-gym/ab"."""
    owners = Counter(row["name"].partition("/")[0] for row in rows if "/" in row["name"])
    shown: dict[str, dict[str, Any]] = {}
    for row in rows:
        owner, slash, _ = row["name"].partition("/")
        if slash and owners[owner] > LISTED:
            summary = (
                f"{owners[owner]} environments, as {row['name']}; `grpo envs --all` lists them"
            )
            shown.setdefault(f"{owner}/", {**row, "name": f"{owner}/...", "summary": summary})
        else:
            shown[row["name"]] = row
    return list(shown.values())


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
