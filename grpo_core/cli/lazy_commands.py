"""Stand for commands until the command line names one, whose module is then imported."""

from __future__ import annotations

import os
from importlib import import_module
from itertools import pairwise, takewhile
from typing import Any

import typer.main
from typer.core import TyperCommand, TyperGroup

from grpo_core.calls.isolation import ForeignError, isolated
from grpo_core.calls.streams import printable_streams
from grpo_core.cli.commands import ROOT, CommandEntry, CommandGroup, command_tree, literal
from grpo_core.cli.output import default_to_false
from grpo_core.cli.plugin_commands import installed_commands
from grpo_core.protocol.errors import GrpoError, PluginError


class LazyCommand(TyperCommand):
    """Stand for a command in the list of its group, without its options."""

    def __init__(self, name: str, entry: CommandEntry, *, path: str, markup_mode: Any) -> None:
        shown = entry.help
        if entry.distribution:
            shown = literal(f"Cannot be used: {entry.problem}" if entry.problem else shown)
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
        if command.callback is not None:  # a group of commands has none
            command.callback = printable_streams()(command.callback)
        if not self._entry.distribution:
            command.rich_markup_mode = self.rich_markup_mode
        return command

    def _built(self) -> Any:
        """Return the command of the module, as typer builds it.

        Raises:
            PluginError: the module has no Typer `app` with this command.
        """
        app = getattr(import_module(self._entry.module), "app", None)
        commands = typer.main.get_group(app).commands if isinstance(app, typer.Typer) else {}
        name = str(self.name)
        if name not in commands:
            raise PluginError(
                f"`{self._path}` of {self._entry.distribution or 'grpo-core'} cannot be used: "
                f"{self._entry.module} has no Typer `app` with a command {name!r}"
            )
        return commands[name]

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
        if not isinstance(command, LazyCommand):
            return name, command, rest
        if chosen := self._chosen_variant(name or "", command, rest):
            return name, self.variant(str(name), chosen).load(), rest
        loaded = command.load()
        if options := [key for key in self.variants.get(name or "", {}) if " " not in key]:
            loaded.epilog = (
                f"{loaded.epilog or ''}. More options come with {' or '.join(options)} "
                f"({self._path} {name} {options[0]} ... --help)"
            )
            if ctx.resilient_parsing:  # a shell completes the options
                loaded.params += [self._option(str(name), key) for key in options]
        return name, loaded, rest

    def _option(self, name: str, option: str) -> Any:
        """Return the option by which a variant takes the place of a command."""
        return next(
            item for item in self.variant(name, option).load().params if option in item.opts
        )

    def _chosen_variant(self, name: str, command: LazyCommand, words: list[str]) -> str:
        """Return the key of the variant that takes the place of a command; "" for the command."""
        values = _values_by_option(words)
        for key in sorted(self.variants.get(name, {})):
            option, _, file = key.partition(" ")
            if option not in values:
                continue
            if file:
                if os.path.lexists(os.path.join(values[option], file)):
                    return key
            elif option not in {word for item in command.load().params for word in item.opts}:
                return key  # what a command has stays its own
        return ""

    def variant(self, name: str, option: str) -> LazyCommand:
        """Return the command that takes the place of another where an option is given.

        Args:
            name: the name of the other command.
            option: the option, or the option and the name of a file, as in `variants`.
        """
        entry = self.variants[name][option]
        path = f"{self._path} {name} {option}"
        return LazyCommand(name, entry, path=path, markup_mode=self.rich_markup_mode)

    def get_help_option(self, ctx: Any) -> Any:
        """Return the option --help, which is False where it is not given."""
        return default_to_false(super().get_help_option(ctx))


def _values_by_option(words: list[str]) -> dict[str, str]:
    """Return the words that stand behind each option of a command line, or "" where none does."""
    values = {}
    for word, following in pairwise([*takewhile(lambda word: word != "--", words), ""]):
        option, sign, value = word.partition("=")
        if option.startswith("--"):
            values[option] = value if sign else following
    return values
