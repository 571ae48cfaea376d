"""Everything that the command line prints: results to stdout, the rest to stderr, so that `--json` can be piped.

Whatever is printed is made `printable` here: names, prompts, completions, the words of verifiers and
errors come from others. No other file of the command line writes to a stream.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import typer
from typer.core import TyperCommand

from grpo_core.calls.printable import printable, printable_json
from grpo_core.calls.streams import beneath, printable_streams, writing_output
from grpo_core.protocol.errors import ConfigError, OutputError

if TYPE_CHECKING:
    from rich.progress import Progress

    from grpo_core.calls.console import PrintableConsole

INTERRUPTED = 130
"""The exit status after Ctrl-C, as shells have it: 128 and the signal's number."""

BROKEN_PIPE = 141
"""The same where what reads the output has gone: 128 and SIGPIPE."""

MESSAGE_LIMIT = 2000
"""The most characters of a message; results are printed in full."""

_CELL_LIMIT = 1000


def print_line(
    text: object = "", *, lead: str = "", limit: int | None = None, **style: Any
) -> None:
    r"""Print one line of a result; a newline inside is shown as `\n`.

    Args:
        text: what to print.
        lead: what stands before it; if it is given, it alone has the style.
        limit: the most characters of the text; all of it by default.
        style: of `typer.style`, such as `bold` and `fg`.
    """
    _write(lead, printable(str(text), lines=False, limit=limit), error=False, style=style)


def print_text(text: str, *, lead: str = "", limit: int | None = None, **style: Any) -> None:
    """Print a result that may have several lines; the arguments are those of `print_line`."""
    _write(lead, printable(text, limit=limit), error=False, style=style)


def remark(text: str) -> None:
    """Print a message for people, beside the result."""
    _write("", printable(text, limit=MESSAGE_LIMIT), error=True, style={"dim": True})


def fail(message: str, *, status: int) -> NoReturn:
    """End the command with a red message."""
    text = printable(f"error: {message}", limit=MESSAGE_LIMIT)
    with contextlib.suppress(OutputError):  # the status still tells
        _write("", text, error=True, style={"fg": typer.colors.RED})
    raise typer.Exit(status)


def drop_output() -> None:
    """Let nothing more be written to streams that cannot be written, so that the exit is clean."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), beneath(stream).fileno())


def print_traceback(error: BaseException) -> None:
    """Print the traceback of a bug, whose text may hold what anybody wrote."""
    text = "".join(traceback.format_exception(error))
    _write("", printable(text, limit=50 * MESSAGE_LIMIT).rstrip("\n"), error=True, style={})


@contextlib.contextmanager
def printable_usage_errors() -> Iterator[None]:
    """Make the message printable of what typer raises in the block for a mistake on the command line."""
    try:
        yield
    except Exception as error:
        if callable(format_message := getattr(error, "format_message", None)):
            text = printable(format_message(), limit=MESSAGE_LIMIT)
            setattr(error, "format_message", lambda: text)  # noqa: B010 - typer has no public class for these
        raise


def print_json(data: Any) -> None:
    r"""Print a result for programs.

    What JSON does not have is null (NaN, infinities); what is not printable is written as `\uXXXX`,
    which is the same value.
    """
    from grpo_core.runs.lines import finite

    text = json.dumps(finite(data), indent=2, ensure_ascii=False, allow_nan=False)
    _write("", printable_json(text), error=False, style={})


def print_columns(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table for people that can also be cut and searched: columns as wide as what they hold."""
    cells = [
        [printable(cell, lines=False, limit=_CELL_LIMIT) for cell in row] for row in [titles, *rows]
    ]
    widths = [max(len(row[i]) for row in cells) for i in range(len(titles))]
    for number, row in enumerate(cells):
        line = "  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True))
        print_line(line.rstrip(), bold=number == 0)


def console(*, stderr: bool = False, quiet: bool = False) -> PrintableConsole:
    """Return the console for tables and bars, which renders plain strings as they are."""
    from grpo_core.calls.console import PrintableConsole

    return PrintableConsole(stderr=stderr, quiet=quiet)


@contextlib.contextmanager
def live(progress: Progress) -> Iterator[Progress]:
    """Show a bar while the block works; what is printed meanwhile stands above it."""
    with progress, printable_streams():  # the bar has redirected the streams to itself
        yield progress


def prints_to_stderr() -> contextlib.redirect_stdout[TextIO]:
    """For code of environments, whose prints are no part of the result."""
    return contextlib.redirect_stdout(sys.stderr)


def on_printable_streams(app: typer.Typer) -> None:
    """Let all commands of `app` run while the streams make printable what others print."""
    for command in app.registered_commands:
        if command.callback is not None:
            command.callback = _on_printable_streams(command.callback)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            on_printable_streams(group.typer_instance)


def _on_printable_streams(callback: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(callback)
    def command(*arguments: Any, **options: Any) -> Any:
        with printable_streams():
            return callback(*arguments, **options)

    return command


def _write(lead: str, text: str, *, error: bool, style: dict[str, Any]) -> None:
    """Write a printable text and the end of the line. `lead` takes the style, or else the text."""
    lead = printable(lead, lines=False, limit=_CELL_LIMIT)
    styled = (
        typer.style(lead, **style) + text if lead else typer.style(text, **style) if style else text
    )
    with writing_output():
        typer.echo(styled, file=beneath(sys.stderr if error else sys.stdout))


def new_file(path: Path | None, option: str) -> Path | None:
    """Return the absolute path of a file that can be begun, so that no change of folder moves it.

    Raises:
        ConfigError: it exists, or its folder does not; before work is done that would be lost.
    """
    if path is None:
        return None
    if os.path.exists(path):  # a name that no file can have is none that exists
        raise ConfigError(f"{path} exists already; name another file for {option}")
    if not path.absolute().parent.is_dir():
        raise ConfigError(
            f"there is no folder {path.parent} for {option} {path.name}; make it, or name another file"
        )
    return path.absolute()


class QuickCommand(TyperCommand):
    """A command that starts without pydantic."""

    def get_help_option(self, ctx: Any) -> Any:
        return unset_is_false(super().get_help_option(ctx))


def unset_is_false(option: Any) -> Any:
    """--help as an option that is False unless given: typer loads pydantic to make a bool of None, a third of a start."""
    if option is not None:
        option.default = False
    return option
