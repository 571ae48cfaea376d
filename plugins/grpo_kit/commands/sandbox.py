"""Implement `grpo sandbox check`, which attacks a sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from grpo_core.api.plugins import PluginHost
from grpo_core.api.settings import SandboxConfig, nested, split_setting
from grpo_core.api.verify import CheckResult
from grpo_core.cli.output import MESSAGE_LIMIT, fail, print_text
from grpo_core.plugins.services import open_sandbox
from grpo_kit.sandboxes.check import check_sandbox

app = typer.Typer()


@app.command(epilog="Example: grpo sandbox check --name bubblewrap")
def check(
    name: Annotated[
        str, typer.Option("--name", help="Name of the sandbox; `grpo plugins` lists them.")
    ] = "auto",
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A setting of the sandbox, as after sandbox.settings.; may be repeated.",
        ),
    ] = None,
) -> None:
    """Attack a sandbox with hostile programs to check its limits, isolation and clean-up.

    Exits with 1 if a check fails.
    """
    given = nested(dict(map(split_setting, settings or [])))
    results = asyncio.run(_checked(name, given))
    for result in results:
        colour = {"valid": typer.colors.GREEN, "invalid": typer.colors.RED}.get(result.status)
        print_text(
            f"{result.status.replace('_', ' '):<12} {result.check:<20} {result.message}",
            limit=MESSAGE_LIMIT,
            fg=colour,
        )
    if problems := [result.check for result in results if result.status == "invalid"]:
        fail(
            f"{len(problems)} of {len(results)} checks failed: {', '.join(problems)}; "
            "do not train with this sandbox",
            status=1,
        )


async def _checked(name: str, settings: Mapping[str, Any]) -> list[CheckResult]:
    """Open a sandbox with these settings, return the results of all checks, and close it."""
    sandbox = open_sandbox(PluginHost(), SandboxConfig(name=name, settings=dict(settings)))
    try:
        return await check_sandbox(sandbox)
    finally:
        await sandbox.close()
