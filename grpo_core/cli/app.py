"""Assemble the groups of commands, and turn each error into one line and an exit status."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from importlib import import_module
from typing import Annotated, Any

import typer

from grpo_core import __version__
from grpo_core.cli.commands import ROOT
from grpo_core.cli.lazy_commands import LazyGroup
from grpo_core.cli.output import (
    BROKEN_PIPE,
    INTERRUPTED,
    drop_output,
    fail,
    print_line,
    print_traceback,
    printable_usage_errors,
)
from grpo_core.protocol.errors import GrpoError, OutputError


class _Commands(LazyGroup):
    """Map errors to exit statuses.

    Mistakes of the user exit with 2, other failures with 1, Ctrl-C with 130, and a closed output
    with 141. Only bugs show a traceback.
    """

    def invoke(self, ctx: Any) -> Any:
        try:
            with printable_usage_errors():
                return super().invoke(ctx)
        except GrpoError as error:
            if isinstance(error, OutputError) and error.closed:
                raise typer.Exit(BROKEN_PIPE) from None
            fail(str(error), status=error.exit_status)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        with printable_usage_errors():
            return super().make_context(*arguments, **options)


app = typer.Typer(
    name=ROOT,
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Train language models with GRPO on tasks that are ordinary Python packages.",
    epilog="Example: grpo run --env arithmetic",
)


def _print_version(requested: bool) -> None:
    if requested:
        print_line(f"grpo-core {__version__}")
        raise typer.Exit


def _install_completion(context: typer.Context, requested: bool) -> None:
    if requested and not context.resilient_parsing:
        import_module("grpo_core.cli.shells").install(context)


def _show_completion(context: typer.Context, requested: bool) -> None:
    if requested and not context.resilient_parsing:
        import_module("grpo_core.cli.shells").show(context)


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
        ),
    ] = False,
    install_completion: Annotated[
        bool,
        typer.Option(
            "--install-completion",
            help="Install completion for this shell (bash, zsh or fish) and exit.",
            callback=_install_completion,
            is_eager=True,
        ),
    ] = False,
    show_completion: Annotated[
        bool,
        typer.Option(
            "--show-completion",
            help="Print the completion script for this shell and exit.",
            callback=_show_completion,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """Accept the options that stand before the command."""


def main() -> None:
    """Run the command line as the console script `grpo`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Models and environments may produce lone surrogates, which no stream can encode.
            stream.reconfigure(errors="backslashreplace")
    is_completing = "_GRPO_COMPLETE" in os.environ
    try:
        if is_completing:
            import_module("grpo_core.cli.shells").answer_shells()
        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:  # noqa: BLE001 - a bug; its traceback may quote text of a model
        if not is_completing:  # else it would stand in the line that the user is writing
            with contextlib.suppress(OutputError):
                print_traceback(error)
        sys.exit(1)
    finally:
        drop_output()
