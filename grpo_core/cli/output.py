"""Where results and remarks go: results to stdout, everything else to stderr, so that `--json` can be piped."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any, NoReturn, TextIO

import typer


def print_json(data: Any) -> None:
    """A result for programs."""
    sys.stdout.write(json.dumps(data, indent=2, ensure_ascii=False) + "\n")


def prints_to_stderr() -> contextlib.redirect_stdout[TextIO]:
    """For code of environments, whose prints are no part of the result."""
    return contextlib.redirect_stdout(sys.stderr)


def remark(text: str) -> None:
    """A line for people, beside the result."""
    typer.secho(text, err=True, dim=True)


def fail(message: str, *, status: int) -> NoReturn:
    """End the command with one red line."""
    typer.secho(f"error: {message}", err=True, fg=typer.colors.RED)
    raise typer.Exit(status)
