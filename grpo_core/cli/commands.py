"""Name all commands: those of the core, and those of packages, which never replace one.

The module of a command is imported only when that command is used, so `grpo --help` imports none,
and a command imports what it needs at the top of its file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from grpo_core.calls.printable import printable
from grpo_core.cli.plugin_commands import PluginCommand

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
    """By the name of a command, those that take its place where an option is given: by "--OPTION",
    or by "--OPTION FILE" where the option has to name a folder with that file."""


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
    named = next((index for index, word in enumerate(words) if word.startswith("--")), len(words))
    option, words = " ".join(words[named:]), words[:named]
    group: CommandGroup | None = root
    for word in words[:-1]:
        member = group.members.get(word) if group else None
        if isinstance(member, CommandEntry):
            return f"{word!r} is a command of {_owner(member)}, so it is not a group of commands"
        group = member
    name = words[-1]
    present = group.members.get(name) if group else None
    if option:
        if group is None or not isinstance(present, CommandEntry):
            return f"there is no command {name!r} that the option could change"
        if option in ("--help", "--version"):
            return f"{option} is an option of every command"
        variants = group.variants.setdefault(name, {})
        if option in variants:
            return f"the name belongs to {_owner(variants[option])}"
        variants[option] = entry
        return ""
    if isinstance(present, CommandGroup) or (group is root and name in GROUPS):
        return f"{name!r} is a group of commands"
    if present is not None:
        return f"the name belongs to {_owner(present)}"
    group = root
    for word in words[:-1]:
        help_line = GROUPS.get(word) or f"Commands of {literal(entry.distribution)}."
        member = group.members.setdefault(word, CommandGroup(help_line))
        assert isinstance(member, CommandGroup)
        group = member
    group.members[name] = entry
    return ""


def literal(text: str) -> str:
    """Return a text of a package so that the help page shows it as it is: no markup, no control."""
    text = printable(text, lines=False)
    if "[" in text or "\\" in text:
        from rich.markup import escape  # costs more than all else here, and is rarely needed

        text = escape(text)
    return text


def _owner(entry: CommandEntry) -> str:
    return entry.distribution or "grpo-core"
