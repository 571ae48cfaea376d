"""Print all output of the command line: results to stdout, everything else to stderr.

This makes the output of `--json` usable in a pipe. All text is made `printable` here, because
names, prompts, completions, verifier notes and error messages come from untrusted sources. No other
file of the command line writes to a stream.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO

import typer
from typer.core import TyperCommand

from grpo_core.calls.call import hearing
from grpo_core.calls.output import Output
from grpo_core.calls.printable import MESSAGE_LIMIT as MESSAGE_LIMIT
from grpo_core.calls.printable import printable, printable_json
from grpo_core.calls.stoppable import INTERRUPTED as INTERRUPTED
from grpo_core.calls.streams import beneath, writing_output
from grpo_core.cli.usage_hints import usage_hint
from grpo_core.protocol.errors import ConfigError, OutputError
from grpo_core.runs.lines import finite

BROKEN_PIPE = 141
"""The exit status if the reader of the output has closed it: 128 plus the number of SIGPIPE."""

_CELL_LIMIT = 1000
"""The most characters of a table cell or of a `lead`."""


def print_line(
    text: object = "", *, lead: str = "", limit: int | None = None, **style: Any
) -> None:
    r"""Print one line of a result; a newline inside is shown as `\n`.

    Args:
        text: the text to print.
        lead: text to print before it; if it is not empty, only this part is styled.
        limit: the most characters of the text; None for all of it.
        style: arguments of `typer.style`, such as `bold` and `fg`.
    """
    _write(lead, printable(str(text), lines=False, limit=limit), error=False, style=style)


def print_text(text: str, *, lead: str = "", limit: int | None = None, **style: Any) -> None:
    """Print a result that may have several lines; the arguments are those of `print_line`."""
    _write(lead, printable(text, limit=limit), error=False, style=style)


def remark(text: str) -> None:
    """Print a message for people to stderr, separate from the result."""
    _write("", printable(text, limit=MESSAGE_LIMIT), error=True, style={"dim": True})


def fail(message: str, *, status: int) -> NoReturn:
    """Print an error message in red and end the command.

    Raises:
        typer.Exit: always, with the exit status `status`.
    """
    text = printable(f"error: {message}", limit=MESSAGE_LIMIT)
    with contextlib.suppress(OutputError):  # the exit status still reports the failure
        _write("", text, error=True, style={"fg": typer.colors.RED})
    raise typer.Exit(status)


def drop_output() -> None:
    """Redirect streams that cannot be written to the null device, so that Python exits cleanly."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), beneath(stream).fileno())


def print_traceback(error: BaseException) -> None:
    """Print the traceback of a bug, made printable because it may quote untrusted text."""
    text = "".join(traceback.format_exception(error))
    _write("", printable(text, limit=50 * MESSAGE_LIMIT).rstrip("\n"), error=True, style={})


@contextlib.contextmanager
def printable_usage_errors() -> Iterator[None]:
    """Make the messages of the usage errors printable that typer raises in the block."""
    try:
        yield
    except Exception as error:
        if callable(format_message := getattr(error, "format_message", None)):
            if (hint := usage_hint(error)) and hasattr(error, "possibilities"):
                error.possibilities = []  # similar letters say less
            message = f"{format_message()}{hint}".replace("': Value error, ", "': ")
            text = printable(message, limit=MESSAGE_LIMIT)
            # typer has no public class for these errors, so mypy knows no such attribute
            setattr(error, "format_message", lambda: text)  # noqa: B010
        raise


def print_json(data: Any) -> None:
    r"""Print a result for programs, as JSON.

    NaN and infinities become null. Characters that are not printable are written as `\uXXXX`, which
    JSON reads as the same character.
    """
    text = json.dumps(finite(data), indent=2, ensure_ascii=False, allow_nan=False)
    _write("", printable_json(text), error=False, style={})


def print_columns(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a plain-text table, one row per line, that tools such as `cut` and `grep` can process.

    Each column is as wide as its widest cell.
    """
    cells = [
        [printable(cell, lines=False, limit=_CELL_LIMIT) for cell in row] for row in [titles, *rows]
    ]
    widths = [max(len(row[i]) for row in cells) for i in range(len(titles))]
    for number, row in enumerate(cells):
        line = "  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True))
        print_line(line.rstrip(), bold=number == 0)


def prints_to_stderr() -> contextlib.redirect_stdout[TextIO]:
    """Redirect stdout to stderr, because what an environment prints is not part of the result."""
    return contextlib.redirect_stdout(sys.stderr)


@contextlib.contextmanager
def environment_output() -> Iterator[None]:
    """Print to stderr what an environment prints, also that of its worker processes and judges.

    What is printed in this process appears at once, all else at the end of the `with` block.
    """
    output = Output(unseen_only=True)
    try:
        with prints_to_stderr(), hearing(output):
            yield
    finally:
        if output.text:
            _write("[printed by the environment]", "", error=True, style={"dim": True})
            _write("", printable(output.text), error=True, style={})


def _write(lead: str, text: str, *, error: bool, style: dict[str, Any]) -> None:
    """Write a printable text and a line feed; style the lead if there is one, else the text."""
    lead = printable(lead, lines=False, limit=_CELL_LIMIT)
    styled = (
        typer.style(lead, **style) + text if lead else typer.style(text, **style) if style else text
    )
    with writing_output():
        typer.echo(styled, file=beneath(sys.stderr if error else sys.stdout))


def new_file(path: Path | None, option: str) -> Path | None:
    """Return the absolute path of a file to be created, after checking that it can be.

    The check comes before the command's work, which would otherwise be lost. The path is absolute,
    so that a change of the working directory does not move the file.

    Args:
        path: the value of the option; None is returned as it is.
        option: the option's name, for the message.

    Raises:
        ConfigError: the file exists already, or its folder does not exist.
    """
    if path is None:
        return None
    if os.path.lexists(path):  # a link that leads nowhere yet would be written through
        raise ConfigError(f"{path} exists already; name another file for {option}")
    if not path.absolute().parent.is_dir():
        raise ConfigError(
            f"the folder {path.parent} of {option} {path.name} does not exist; "
            "create it, or name another file"
        )
    return path.absolute()


class QuickCommand(TyperCommand):
    """Define a command that starts without importing pydantic."""

    def get_help_option(self, ctx: Any) -> Any:
        """Return the option --help, which is False where it is not given."""
        return default_to_false(super().get_help_option(ctx))


def default_to_false(option: Any) -> Any:
    """Return the --help option with False as its default instead of None.

    To convert None to a bool, typer would import pydantic, which takes a third of the start-up.
    """
    if option is not None:
        option.default = False
    return option
