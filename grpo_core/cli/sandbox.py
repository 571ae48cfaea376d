"""`grpo sandbox`: make its image, and remove what killed trainers left."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from grpo_core.cli.output import remark
from grpo_core.errors import ConfigError

sandbox_app = typer.Typer(no_args_is_help=True, help="Prepare and clean up the sandbox that runs code which a model wrote.")
Name = Annotated[str, typer.Option("--name", help="Which sandbox; `grpo plugins` lists them.")]


@sandbox_app.command(epilog="Example: grpo sandbox build --from debian")
def build(
    origin: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="registry|debian|ARCHIVE", help="Where the root comes from; left out: a registry, or else a Debian mirror."
        ),
    ] = None,
    mirror: Annotated[str | None, typer.Option("--mirror", metavar="URL", help="Debian mirror; left out: that of apt.")] = None,
    name: Name = "docker",
) -> None:
    """Make the image in which programs run, and try it with a program."""
    _method(name, "build")(origin, mirror=mirror, say=remark)
    _try(name)
    typer.echo(f"the sandbox {name} is ready")


@sandbox_app.command(epilog="Example: grpo sandbox prune")
def prune(name: Name = "docker") -> None:
    """Remove what trainers left that were killed."""
    _method(name, "prune")(say=typer.echo)


def _method(name: str, method: str) -> Any:
    from grpo_core.plugins import PluginHost

    component = PluginHost().load("sandbox", name)
    if not hasattr(component, method):
        raise ConfigError(f"the sandbox {name!r} has nothing to {method}")
    return getattr(component, method)


def _try(name: str) -> None:
    """Run a program whose answer is known."""
    import asyncio

    from grpo_core.config import SandboxConfig
    from grpo_core.plugins import PluginHost
    from grpo_core.sandbox import Program
    from grpo_core.services import open_sandbox

    async def tried() -> Any:
        sandbox = open_sandbox(PluginHost(), SandboxConfig(name=name, settings={"jails": 1}))
        try:
            return (await sandbox.run([Program("def f(x): return x + 1", "f", [(1,)])]))[0][0]
        finally:
            await sandbox.close()

    outcome = asyncio.run(tried())
    if (outcome.status, outcome.value) != ("ok", 2):
        raise ConfigError(f"the sandbox {name!r} cannot run a program: {outcome.status} {outcome.error}")
