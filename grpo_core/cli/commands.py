"""Name all commands, and import the module of a command only when that command is used.

So `grpo --help` imports no command, and a command imports what it needs at the top of its file.
The commands of packages are added to those of the core, and never replace one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import groupby
from typing import Any

import typer.main
from typer.core import TyperCommand, TyperGroup

from grpo_core.calls.isolation import ForeignError, isolated
from grpo_core.calls.printable import printable
from grpo_core.calls.streams import printable_streams
from grpo_core.cli.output import default_to_false
from grpo_core.cli.plugin_commands import PluginCommand, installed_commands
from grpo_core.protocol.errors import GrpoError, PluginError

ROOT = "grpo"
"""The name of the outermost group."""

GROUPS: Mapping[str, str] = {
    "env": "Inspect, try, check or create an environment.",
    "new": "Write the package of a new environment or of another plugin, with tests.",
    "model": "Download models, and list those that are on this machine.",
    "config": "Show and explain the settings of a run, or print their JSON schema.",
    "judge": "Test judge models before they give rewards.",
    "sandbox": "Build, check and clean up the sandbox in which code of a model runs.",
}
"""The help of each group of commands within `grpo`."""


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """Say where a command is defined, and what it does."""

    module: str
    """The module whose Typer `app` holds the command."""
    help: str
    """The first line of the command's docstring, for the list of commands."""
    distribution: str = ""
    """Name and version of the distribution that offers it; "" for a command of the core."""
    problem: str = ""
    """Why it cannot be used; "" if nothing is known against it."""


@dataclass(frozen=True, slots=True)
class CommandGroup:
    """Hold the commands and groups within a group, by name."""

    help: str
    """What the commands of the group are for."""
    members: dict[str, CommandEntry | CommandGroup] = field(default_factory=dict)
    """The commands and groups, in the order in which the help lists them."""
    variants: dict[str, dict[str, CommandEntry]] = field(default_factory=dict)
    """By the name of a command, the commands that take its place where an option is given."""


COMMANDS: Mapping[str, Mapping[str, CommandEntry]] = {
    ROOT: {
        "run": CommandEntry("grpo_core.cli.run", "Train a model on an environment with GRPO."),
        "sft": CommandEntry(
            "grpo_core.cli.sft",
            "Fine-tune a model on given answers before GRPO "
            "(supervised fine-tuning, a warm start).",
        ),
        "eval": CommandEntry(
            "grpo_core.cli.evaluate", "Measure a run or a model on held-out tasks."
        ),
        "generate": CommandEntry(
            "grpo_core.cli.generate", "Answer a question with a trained run or a model."
        ),
        "serve": CommandEntry(
            "grpo_core.cli.serve",
            "Serve a run or a model to clients of the OpenAI API, such as evaluation harnesses.",
        ),
        "envs": CommandEntry(
            "grpo_core.cli.plugins", "List the environments that can be trained on."
        ),
        "plugins": CommandEntry(
            "grpo_core.cli.plugins",
            "List the installed plugins and the components that they offer.",
        ),
        "doctor": CommandEntry(
            "grpo_core.cli.doctor",
            "Check versions, hardware, memory, disk, sandboxes, clusters and plugins.",
        ),
    },
    "model": {
        "pull": CommandEntry(
            "grpo_core.cli.model",
            "Download a model so that later runs need no network, or update a cached hub model.",
        ),
        "list": CommandEntry(
            "grpo_core.cli.model",
            "List the models that need no network, then the aliases that can be downloaded.",
        ),
    },
    "config": {
        "show": CommandEntry(
            "grpo_core.cli.config",
            "Print every setting that `grpo run` would use, with the default if it differs.",
        ),
        "explain": CommandEntry(
            "grpo_core.cli.config",
            "Explain a setting: its meaning, the values that it takes and its default.",
        ),
        "schema": CommandEntry(
            "grpo_core.cli.config",
            "Print the JSON schema of recipes, for editors that complete and check them.",
        ),
    },
}
"""The commands of each group, in the order in which its help lists them."""


def command_tree(offered: Iterable[PluginCommand]) -> tuple[CommandGroup, list[str]]:
    """Return all commands as a tree, and a sentence about each command that cannot be used.

    A name that several distributions offer is a command that says so: nobody could tell which one
    they get. A name of the core or of its own packages, or one that is both a command and a group,
    stays with its owner.

    Args:
        offered: the commands of packages.
    """
    root = CommandGroup("")
    for group, commands in COMMANDS.items():
        members = dict(commands)
        if group == ROOT:
            root.members.update(members)
        else:
            root.members[group] = CommandGroup(GROUPS[group], {**members})
    problems = []
    ranked = sorted(offered, key=lambda command: (not command.is_bundled, command.name))
    for (_, name), rivals in groupby(ranked, lambda command: (command.is_bundled, command.name)):
        first, *others = rivals
        entry = _entry(first, others)
        refusal = _add(root, name.split(" "), entry) if first.can_be_typed else ""
        if problem := refusal or entry.problem:
            problems.append(f"`{ROOT} {name}` of {entry.distribution} cannot be used: {problem}")
    return root, problems


def _entry(first: PluginCommand, others: Sequence[PluginCommand]) -> CommandEntry:
    """Return the entry of a name that one distribution offers, or several."""
    problem, rivals = first.problem, [first, *others]
    if others:
        names = [command.distribution.partition(" ")[0] for command in rivals]
        problem = (
            f"{len(rivals)} distributions offer it: {', '.join(names)}; "
            f"uninstall all but one, for example with `pip uninstall {names[-1]}`"
        )
    distributions = " and ".join(command.distribution for command in rivals)
    return CommandEntry(first.module, first.help, distributions, problem)


def _add(root: CommandGroup, words: list[str], entry: CommandEntry) -> str:
    """Add a command to the tree, with the groups around it; return why not, "" if it was added."""
    option = words.pop() if words[-1].startswith("--") else ""
    group = root
    for word in words[:-1]:
        member = group.members.setdefault(
            word, CommandGroup(GROUPS.get(word, f"Commands of {entry.distribution}."))
        )
        if isinstance(member, CommandEntry):
            return f"{word!r} is a command of {_owner(member)}, so it is not a group of commands"
        group = member
    name = words[-1]
    present = group.members.get(name)
    if option:
        if not isinstance(present, CommandEntry):
            return f"there is no command {name!r} that the option could change"
        group.variants.setdefault(name, {})[option] = entry
    elif isinstance(present, CommandGroup) or (group is root and name in GROUPS):
        return f"{name!r} is a group of commands"
    elif present is not None:
        return f"the name belongs to {_owner(present)}"
    else:
        group.members[name] = entry
    return ""


def _owner(entry: CommandEntry) -> str:
    return entry.distribution or "grpo-core"


class LazyCommand(TyperCommand):
    """Stand for a command in the list of its group, without its options."""

    def __init__(self, name: str, entry: CommandEntry, *, path: str, markup_mode: Any) -> None:
        shown = entry.help
        if entry.distribution:  # not our own text, which may use no markup and is printable
            shown = printable(f"Cannot be used: {entry.problem}" if entry.problem else shown)
            shown = shown.replace("[", "\\[")
        super().__init__(name, help=shown, rich_markup_mode=markup_mode)
        self._entry = entry
        self._path = path

    def load(self) -> Any:
        """Import the command's module, and return the command as typer builds it.

        Raises:
            VersionError: a package that is always needed has a version that is not supported.
            PluginError: the command of a package cannot be used.
        """
        # `grpo --help` compares no versions, so it does not import this either.
        import_module("grpo_core.plugins.versions").check_versions(ROOT)
        command = self._of_package() if self._entry.distribution else self._built()
        command.callback = printable_streams()(command.callback)
        command.rich_markup_mode = self.rich_markup_mode
        return command

    def _built(self) -> Any:
        app = import_module(self._entry.module).app
        return typer.main.get_group(app).commands[self.name or ""]

    def _of_package(self) -> Any:
        """Return the command of a package, whatever its code does when it is imported."""
        problem, cause = self._entry.problem, None
        if not problem:
            try:
                return isolated(self._built)
            except ForeignError as error:
                cause = error.__cause__
                if isinstance(cause, GrpoError):
                    raise cause from None
                problem = str(error)
                if isinstance(cause, KeyError | AttributeError):
                    problem = f"{self._entry.module} has no Typer `app` with this command"
        raise PluginError(
            f"`{self._path}` of {self._entry.distribution} cannot be used: {problem}"
        ) from cause


class LazyGroup(TyperGroup):
    """Load the commands of a group one by one, when the command line names them.

    `get_command` returns what the help lists; typer calls `resolve_command` to run a command, to
    show its help or to complete its options.
    """

    def __init__(self, *, content: CommandGroup | None = None, path: str = ROOT, **options: Any):
        super().__init__(**options)
        content = content or command_tree(installed_commands())[0]
        self.variants = content.variants
        self._path = path
        for name, member in content.members.items():
            words = f"{path} {name}"
            self.commands[name] = (
                LazyCommand(name, member, path=words, markup_mode=self.rich_markup_mode)
                if isinstance(member, CommandEntry)
                else LazyGroup(
                    content=member,
                    path=words,
                    name=name,
                    help=member.help,
                    no_args_is_help=True,
                    rich_markup_mode=self.rich_markup_mode,
                )
            )

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the arguments name, and import its module."""
        name, command, rest = super().resolve_command(ctx, args)
        for option in self.variants.get(name or "", {}):
            if any(word == option or word.startswith(f"{option}=") for word in rest):
                command = self.variant(str(name), option)
        return name, command.load() if isinstance(command, LazyCommand) else command, rest

    def variant(self, name: str, option: str) -> LazyCommand:
        """Return the command that takes the place of another where an option is given."""
        entry = self.variants[name][option]
        path = f"{self._path} {name} {option}"
        return LazyCommand(name, entry, path=path, markup_mode=self.rich_markup_mode)

    def get_help_option(self, ctx: Any) -> Any:
        """Return the option --help, which is False where it is not given."""
        return default_to_false(super().get_help_option(ctx))
