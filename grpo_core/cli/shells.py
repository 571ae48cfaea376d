"""Install or print the script by which a shell completes commands, options and their values."""

from __future__ import annotations

import os
from typing import Any

import shellingham
import typer
import typer.completion

from grpo_core.cli.output import fail, print_line, print_text, remark

completion: Any = typer.completion
"""Its functions are public by name, but not by what the module says that it exports."""
VARIABLE = "_GRPO_COMPLETE"
"""The variable by which the script asks this program for completions."""
_BASH_SPACE = "    return 0\n"
_BASH_NO_SPACE = "    [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace\n    return 0\n"
"""Bash puts a space behind what it has completed; a value follows KEY= at once."""
_SHELLS = ("bash", "zsh", "fish")


def answer_shells() -> None:
    """Make typer answer the shells that ask for completions; it does not by itself."""
    completion.completion_init()


def show(context: Any) -> None:
    """Print the script for the shell from which this program was started, and end."""
    print_text(_script(_shell(), str(context.find_root().info_name)))
    raise typer.Exit


def install(context: Any) -> None:
    """Write the script to where the shell reads it when it starts, and end."""
    name = str(context.find_root().info_name)
    try:
        shell, path = completion.install(shell=_shell(), prog_name=name, complete_var=VARIABLE)
        path.write_text(_script(shell, name) + "\n", encoding="utf-8")
    except OSError as error:
        fail(
            f"the completion cannot be installed: {error.strerror or error}; write it yourself "
            f"with {name} --show-completion",
            status=1,
        )
    print_line(path)
    remark(f"completion for {shell} is installed; it works in the next shell that you start")
    raise typer.Exit


def _script(shell: str, name: str) -> str:
    script: str = completion.get_completion_script(
        prog_name=name, complete_var=VARIABLE, shell=shell
    )
    return script.replace(_BASH_SPACE, _BASH_NO_SPACE) if shell == "bash" else script


def _shell() -> str:
    """Return the name of the shell from which this program was started, if it can complete."""
    try:
        shell = str(shellingham.detect_shell()[0])
    except shellingham.ShellDetectionFailure:
        shell = os.path.basename(os.environ.get("SHELL", ""))
    if shell not in _SHELLS:
        fail(
            f"completion is for {', '.join(_SHELLS)}, and this shell is {shell or 'not known'}; "
            "start the command from one of them",
            status=2,
        )
    return shell
