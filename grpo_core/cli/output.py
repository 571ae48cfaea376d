"""Where results and remarks go: results to stdout, everything else to stderr, so that `--json` can be piped."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO

import typer
from typer.core import TyperCommand

from grpo_core.errors import ConfigError

INTERRUPTED = 130
"""The exit status after Ctrl-C, as shells have it: 128 and the signal's number."""


def print_json(data: Any) -> None:
    """A result for programs. What JSON cannot say is null (NaN, infinities); what UTF-8 cannot (lone surrogates), escaped."""
    from grpo_core.runs.lines import finite

    text = json.dumps(finite(data), indent=2, ensure_ascii=False, allow_nan=False)
    sys.stdout.write(text.encode("utf-8", "backslashreplace").decode("utf-8") + "\n")


def new_file(path: Path | None, option: str) -> None:
    """Raises ConfigError, before work is done that would be lost, where `option` names a file that cannot be begun."""
    if path is None:
        return
    if os.path.exists(path):  # a name that no file can have is none that exists
        raise ConfigError(f"{path} exists already; name another file for {option}")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"there is no folder {path.parent} for {option} {path.name}; make it, or name another file")


def print_columns(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table for people, which can also be cut and searched: columns as wide as what they hold."""
    widths = [max(len(row[i]) for row in [titles, *rows]) for i in range(len(titles))]
    for number, row in enumerate([titles, *rows]):
        line = "  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True))
        typer.secho(line.rstrip(), bold=number == 0)


def prints_to_stderr() -> contextlib.redirect_stdout[TextIO]:
    """For code of environments, whose prints are no part of the result."""
    return contextlib.redirect_stdout(sys.stderr)


def remark(text: str) -> None:
    """A line for people, beside the result."""
    typer.secho(text, err=True, dim=True)


class QuickCommand(TyperCommand):
    """A command that starts without pydantic."""

    def get_help_option(self, ctx: Any) -> Any:
        return unset_is_false(super().get_help_option(ctx))


def unset_is_false(option: Any) -> Any:
    """--help as an option that is False unless given: typer loads pydantic to make a bool of None, a third of a start."""
    if option is not None:
        option.default = False
    return option


def fail(message: str, *, status: int) -> NoReturn:
    """End the command with one red line."""
    typer.secho(f"error: {message}", err=True, fg=typer.colors.RED)
    raise typer.Exit(status)
