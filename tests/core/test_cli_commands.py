"""The commands of the core and of our packages, against what is listed of them, and what is imported for it."""

import json
import subprocess
import sys
from importlib import import_module
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from grpo_core.cli.app import app
from grpo_core.cli.commands import COMMANDS, GROUPS, CommandGroup, command_tree
from grpo_core.cli.lazy_commands import LazyCommand
from grpo_core.cli.plugin_commands import installed_commands

TREE, PROBLEMS = command_tree(
    command for command in installed_commands() if command.distribution.startswith("grpo-core ")
)


def paths(group: CommandGroup = TREE, *before: str) -> list[list[str]]:
    """The words of every command of a group."""
    found = []
    for name, member in group.members.items():
        inner = paths(member, *before, name) if isinstance(member, CommandGroup) else None
        found += inner or [[*before, name]]
    return found


PATHS = paths()


def stand_in(words: list[str]) -> LazyCommand:
    """What the list of its group holds of a command."""
    command: Any = typer.main.get_command(app)
    for word in words:
        command = command.commands[word]
    assert isinstance(command, LazyCommand)
    return command


def run(*words: str) -> tuple[str, set[str]]:
    """The output of a command line in a process of its own, and the modules of commands that it imported."""
    script = (
        "import json, sys\nfrom grpo_core.cli import main\n"
        "try:\n    main()\nfinally:\n    json.dump(sorted(sys.modules), sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    modules = json.loads(done.stderr.splitlines()[-1])
    return done.stdout, {name for name in modules if ".cli." in name or ".commands" in name}


@pytest.mark.parametrize("words", PATHS, ids=" ".join)
def test_the_list_says_of_a_command_what_the_first_paragraph_of_its_docstring_says(
    words: list[str],
) -> None:
    command = stand_in(words)
    loaded = command.load()
    assert loaded.name == words[-1]
    assert loaded.help.split("\n\n")[0] == command.help


def test_every_command_that_a_module_defines_is_listed() -> None:
    entries = [
        *(
            ("x " + command.name.partition(" --")[0], command.module)
            for command in installed_commands()
        ),
        *((name, entry.module) for group in COMMANDS.values() for name, entry in group.items()),
    ]
    listed: dict[str, set[str]] = {}
    for name, module in entries:
        if module.startswith("grpo_"):
            listed.setdefault(module, set()).add(name.rpartition(" ")[2])
    defined = {
        module: set(typer.main.get_group(import_module(module).app).commands) for module in listed
    }
    assert listed == defined


def test_every_group_has_a_help_and_commands() -> None:
    groups = {name for name, member in TREE.members.items() if isinstance(member, CommandGroup)}
    assert groups == set(GROUPS)
    assert PROBLEMS == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize("group", [[], *([name] for name in GROUPS)], ids=" ".join)
def test_the_help_of_a_group_lists_its_commands_and_imports_none(group: list[str]) -> None:
    shown, modules = run(*group, "--help")
    members = TREE.members if not group else TREE.members[group[0]].members  # type: ignore[union-attr]
    assert [name for name in members if f" {name} " not in shown] == []
    assert "grpo_core.cli.commands" in modules
    assert modules & MODULES == set()


MODULES = {command.module for command in installed_commands()} | {
    entry.module for listed in COMMANDS.values() for entry in listed.values()
}


@pytest.mark.slow
def test_a_command_imports_no_other_command() -> None:
    for words, module in (
        (["env", "show"], "grpo_kit.commands.show"),
        (["run"], "grpo_core.cli.run"),
    ):
        shown, modules = run(*words, "--help")
        assert "Usage: " in shown
        assert modules & MODULES == {module}


def test_a_command_can_be_loaded_again() -> None:
    for _ in range(2):
        done = CliRunner().invoke(app, ["config", "explain", "kl.beta"])
        assert done.exit_code == 0
        assert done.stdout.count("kl.beta") == 1


def test_a_wrong_name_is_answered_by_the_nearest_command_of_the_group() -> None:
    assert "Did you mean 'run'?" in CliRunner().invoke(app, ["rum"]).output
    assert "Did you mean 'show'?" in CliRunner().invoke(app, ["env", "shw"]).output


def test_names_and_options_are_completed() -> None:
    command: Any = typer.main.get_command(app)
    with command.make_context("grpo", [], resilient_parsing=True) as context:
        names = [item.value for item in command.shell_complete(context, "p")]
        assert sorted(names) == ["plot", "plugins"]
        _, plot, _ = command.resolve_command(context, ["plot"])
    with plot.make_context("plot", [], resilient_parsing=True) as context:
        assert [item.value for item in plot.shell_complete(context, "--o")] == ["--out"]
