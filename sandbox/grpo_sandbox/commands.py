"""Implement `grpo sandbox`, which builds a sandbox image, checks it, and cleans up leftovers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Annotated, Any, TypeVar

import typer

from grpo_core import ConfigError, Program, Sandbox
from grpo_core.api.plugins import PluginHost
from grpo_core.api.settings import SandboxConfig
from grpo_core.cli.output import print_line, remark
from grpo_core.plugins.services import open_sandbox

T = TypeVar("T")

app = typer.Typer()
Name = Annotated[
    str, typer.Option("--name", help="Name of the sandbox; `grpo plugins` lists them.")
]


@app.command(epilog="Example: grpo sandbox build --from debian")
def build(
    origin: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="registry|debian|ARCHIVE",
            help="Source of the root file system (default: a registry, "
            "or a Debian mirror if that fails).",
        ),
    ] = None,
    mirror: Annotated[
        str | None,
        typer.Option(
            "--mirror",
            metavar="URL",
            help="Debian mirror (default: that of apt, or else that of debootstrap).",
        ),
    ] = None,
    name: Name = "docker",
) -> None:
    """Build the image in which programs run, and test it with a program."""
    _get_method(name, "build")(origin, mirror=mirror, say=remark)
    _run_test_program(name)
    print_line(f"the sandbox {name} is ready")


@app.command(epilog="Example: grpo sandbox prune")
def prune(name: Name = "docker") -> None:
    """Remove the containers that killed trainers left behind."""
    _get_method(name, "prune")(say=print_line)


def _get_method(name: str, method: str) -> Any:
    """Return the method of a sandbox plugin that implements a command.

    Raises:
        ConfigError: the sandbox has no such method.
    """
    component = PluginHost().load("sandbox", name)
    if not hasattr(component, method):
        raise ConfigError(f"the sandbox {name!r} has nothing to {method}")
    return getattr(component, method)


def _run_test_program(name: str) -> None:
    """Run a program with a known result in the sandbox.

    Raises:
        ConfigError: the result is wrong.
    """
    ((outcome,),) = asyncio.run(
        _with_sandbox(
            name,
            {"jails": 1},
            lambda sandbox: sandbox.run([Program("def f(x): return x + 1", "f", [(1,)])]),
        )
    )
    if (outcome.status, outcome.value) != ("ok", 2):
        raise ConfigError(
            f"the sandbox {name!r} cannot run a program: {outcome.status} {outcome.error}"
        )


async def _with_sandbox(
    name: str, settings: Mapping[str, Any], use: Callable[[Sandbox], Coroutine[Any, Any, T]]
) -> T:
    """Open a sandbox, return the result of `use`, and close it.

    Args:
        name: the sandbox.
        settings: the settings that differ from their defaults.
        use: is called with the open sandbox.
    """
    sandbox = open_sandbox(PluginHost(), SandboxConfig(name=name, settings=dict(settings)))
    try:
        return await use(sandbox)
    finally:
        await sandbox.close()
