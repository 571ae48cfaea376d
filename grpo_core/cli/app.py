"""Assemble the commands, and turn each error into one line and an exit status."""

from __future__ import annotations

import contextlib
import io
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from grpo_core import __version__
from grpo_core.cli import (
    card,
    check,
    config,
    doctor,
    envs,
    evaluate,
    export,
    generate,
    judge,
    model,
    new,
    play,
    plot,
    plugins,
    probe,
    run,
    sandbox,
    sft,
)
from grpo_core.cli.output import (
    BROKEN_PIPE,
    INTERRUPTED,
    default_to_false,
    drop_output,
    fail,
    on_printable_streams,
    print_line,
    print_traceback,
    printable_usage_errors,
)
from grpo_core.protocol.errors import GrpoError, OutputError


class _Commands(TyperGroup):
    """Map errors to exit statuses.

    Mistakes of the user exit with 2, other failures with 1, Ctrl-C with 130, and a closed output
    with 141. Only bugs show a traceback.
    """

    def invoke(self, ctx: Any) -> Any:
        try:
            with printable_usage_errors():
                return super().invoke(ctx)
        except OutputError as error:
            if error.closed:
                raise typer.Exit(BROKEN_PIPE) from None
            fail(str(error), status=error.exit_status)
        except GrpoError as error:
            fail(str(error), status=error.exit_status)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        with printable_usage_errors():
            return super().make_context(*arguments, **options)

    def get_help_option(self, ctx: Any) -> Any:
        return default_to_false(super().get_help_option(ctx))


app = typer.Typer(
    name="grpo",
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Train language models with GRPO on tasks that are ordinary Python packages.",
    epilog="Example: grpo run --env arithmetic",
)
run.register(app)
sft.register(app)
evaluate.register(app)
export.register(app)
plot.register(app)
generate.register(app)
envs.register(app)
plugins.register(app)
doctor.register(app)
for command_module in (new, check, probe, play, card):
    command_module.register(envs.env_app)
app.add_typer(model.model_app, name="model")
app.add_typer(config.config_app, name="config")
app.add_typer(judge.judge_app, name="judge")
app.add_typer(sandbox.sandbox_app, name="sandbox")
on_printable_streams(app)


def _print_version(requested: bool) -> None:
    if requested:
        print_line(f"grpo-core {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
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
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:  # noqa: BLE001 - a bug; its traceback may quote text of a model
        with contextlib.suppress(OutputError):
            print_traceback(error)
        sys.exit(1)
    finally:
        drop_output()
