"""Say what a command line that cannot be understood was probably meant to be."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

from grpo_core.protocol.errors import did_you_mean

OPTIONS = {
    "--batch-size": "--prompts-per-step",
    "--per-device-train-batch-size": "--prompts-per-step",
    "--num-generations": "--group-size",
    "--generations": "--group-size",
    "--learning-rate": "--lr",
    "--max-tokens": "--max-new-tokens",
    "--max-completion-length": "--max-new-tokens",
    "--max-steps": "--steps",
    "--iterations": "--steps",
    "--output-dir": "--out",
    "--output": "--out",
    "--config": "--recipe",
    "--kl": "--beta",
    "--environment": "--env",
    "-e": "--env",
    "-m": "--model",
    "-o": "--out",
    "--task": "--index",
    "--question": "--prompt",
}
"""What other programs call an option, and what it is called here, in commands that have it."""
COMMANDS = {
    "train": "run",
    "evaluate": "eval",
    "test": "env check",
    "list": "envs",
    "ls": "envs",
    "check": "env check",
    "show": "env show",
    "score": "env score",
    "play": "env play",
    "init": "env new",
    "version": "--version",
    "help": "--help",
    "download": "model pull",
    "fetch": "model pull",
}
"""The same of commands; in a group the last word counts, if the group has it."""
_EXTRA = re.compile(r"Got unexpected extra arguments?(?:\(s\))? \((.+)\)", re.DOTALL)
_NO_COMMAND = re.compile(r"No such command '(.+)'")


def usage_hint(error: Any) -> str:
    """Return the end of the message of a usage error that typer has raised; "" if none is known."""
    context = getattr(error, "ctx", None)
    if context is None:
        return ""
    message = str(getattr(error, "message", ""))
    if option := getattr(error, "option_name", ""):
        return _meant_option(str(option), context)
    if (match := _EXTRA.search(message)) is not None:
        return _meant_argument(match[1], context)
    if (match := _NO_COMMAND.search(message)) is not None:
        return _meant_command(match[1], context)
    return _help_of_missing(error)


def _meant_option(option: str, context: Any) -> str:
    """Return what an option that does not exist was meant to be."""
    known = {word for parameter in context.command.params for word in parameter.opts}
    arguments = [p for p in context.command.params if not p.opts[0].startswith("-")]
    option = option.lower().replace("_", "-")
    if (meant := option if option in known else OPTIONS.get(option)) in known:
        return f"; did you mean {meant}?"
    if arguments and option in ("--env", "--environment", "--name", "--run", "--prompt", "-e"):
        name = str(arguments[0].name).upper()
        return f"; it stands without an option: {context.command_path} {name}"
    if "--set" in known:
        # These take pydantic, which few mistakes need.
        settings = list(import_module("grpo_core.config.overrides").known_keys())
        meant_settings = import_module("grpo_core.config.meant").meant_settings
        if keys := meant_settings(option.lstrip("-").replace("-", "_"), settings):
            return f"; it is a setting: --set {'=VALUE or --set '.join(keys)}=VALUE"
    return ""


def _meant_argument(words: str, context: Any) -> str:
    """Return what arguments of which there are too many were meant to be."""
    options = {word for parameter in context.command.params for word in parameter.opts}
    path = context.command_path
    if words == "help":
        return f"; did you mean {path} --help?"
    settings = context.params.get("settings") or ()
    if settings and "=" not in settings[-1]:
        return f"; write a setting in one word: --set {settings[-1]}={words.split()[0]}"
    if "--env" in options and not context.params.get("env"):
        return f"; an environment is named by an option: {path} --env {words.split()[0]}"
    if "--index" in options and words.isdigit():
        return f"; a task is named by an option: --index {words}"
    if all(parameter.opts[0].startswith("-") for parameter in context.command.params):
        return f"; {path} takes options only"
    return f"; quote a text of several words, or see {path} --help"


def _meant_command(name: str, context: Any) -> str:
    """Return what a command that does not exist was meant to be."""
    known, path = context.command.commands, context.command_path
    meant = COMMANDS.get(name, "")
    first, last = meant.partition(" ")[0], meant.rpartition(" ")[2]
    if last in known and last != name:
        return f" Did you mean {path} {last}?"
    root = context.find_root()
    if meant and (first in root.command.commands or first.startswith("--")):
        return f" Did you mean {root.command_path} {meant}?"
    suggestion = did_you_mean(name, known).removeprefix("; d").removesuffix(".")
    return f" D{suggestion}" if suggestion else f" {path} has: {', '.join(sorted(known))}"


def _help_of_missing(error: Any) -> str:
    """Return what the argument or option is that is missing."""
    parameter = getattr(error, "param", None)
    text = str(getattr(parameter, "help", "") or "")
    return f" {text}" if text and type(error).__name__ == "MissingParameter" else ""
