"""Find the commands of installed packages in their metadata, without importing a package.

A package offers a command as an entry point of the group `grpo.commands`. Its name is what follows
`grpo` on the command line, such as "env check"; its value is the module whose Typer `app` holds
the command. A name that ends with an option, such as "eval --endpoint", takes the place of the
command "eval" where that option is given. One that ends with an option and a file, such as
"run --resume series.json", does so where the option names a folder that holds such a file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from grpo_core.cli.command_help import help_line, source_file
from grpo_core.config.modelcache import cache_folder

GROUP = "grpo.commands"
"""The group of entry points."""

_FORMAT = 2
_WORDS = re.compile(
    r"[a-z0-9][a-z0-9-]{0,29}( [a-z0-9][a-z0-9-]{0,29}){0,3}"
    r"( --[a-z0-9-]{1,30}( [a-z0-9-]{1,30}\.json)?)?"
)
"""The names that can be typed as words of a command line, and leave room for their help."""


@dataclass(frozen=True, slots=True)
class PluginCommand:
    """Hold a command as the metadata of a distribution declares it."""

    name: str
    """The words after `grpo`, separated by one space."""
    module: str
    """Dotted name of the module whose Typer `app` holds the command."""
    help: str
    """What it does, in one line; "" if the source does not say so."""
    distribution: str
    """Name and version of the distribution."""
    problem: str = ""
    """Why the command cannot be used; "" if nothing is known against it."""
    file: str = ""
    """The source file from which the help was read; "" if there is none."""
    changed_ns: int = 0
    """When that file was changed last, in nanoseconds since 1970."""

    @property
    def is_bundled(self) -> bool:
        """Return whether the command belongs to a package of the project itself."""
        return self.distribution.rpartition(" ")[0] == "grpo-core"

    @property
    def can_be_typed(self) -> bool:
        """Return whether the name consists of words that a command line takes as such."""
        return _WORDS.fullmatch(self.name) is not None


def installed_commands() -> tuple[PluginCommand, ...]:
    """Return the commands of all installed distributions.

    Reading the metadata of all distributions takes longer than all else that `grpo --help` does, so
    the answer is stored in the user's cache. It is read again after something was installed or
    removed (this changes a folder of `sys.path`), and after the source of a command changed.
    """
    key = _installation()
    digest = hashlib.sha256(json.dumps(key[:2]).encode()).hexdigest()[:16]
    try:
        file = cache_folder() / "commands" / f"{digest}.json"
    except RuntimeError:  # there is no home folder, so no cache
        return tuple(_read_metadata())
    commands = _stored(file, key)
    if commands is None:
        commands = tuple(_read_metadata())
        _store(file, key, commands)
    return commands


def _installation() -> list[Any]:
    """Return what changes whenever a distribution is installed or removed."""
    stamps = []
    for entry in sys.path:
        with contextlib.suppress(OSError):  # a folder that does not exist holds no distribution
            stamps.append([entry, os.stat(entry or ".").st_mtime_ns])
    return [_FORMAT, sys.prefix, stamps]


def _stored(file: Path, key: list[Any]) -> tuple[PluginCommand, ...] | None:
    """Return the commands in a file of the cache; None if it is missing, damaged or outdated."""
    try:
        content = json.loads(file.read_bytes())
        commands = tuple(PluginCommand(**fields) for fields in content["commands"])
        is_current = content["key"] == key and all(
            os.stat(command.file).st_mtime_ns == command.changed_ns
            for command in commands
            if command.file
        )
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    return commands if is_current else None


def _store(file: Path, key: list[Any], commands: tuple[PluginCommand, ...]) -> None:
    """Write a file of the cache whole; where that is not possible, the next call reads again."""
    content = {"key": key, "commands": [asdict(command) for command in commands]}
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=file.parent)
        try:
            with open(descriptor, "w", encoding="utf-8") as stream:
                json.dump(content, stream)
            os.replace(temporary, file)
        except OSError:
            os.unlink(temporary)
            raise


def _read_metadata() -> Iterator[PluginCommand]:
    """Yield the commands of the distributions on `sys.path`.

    Of several distributions with one name, Python imports the first, so its commands count. One
    whose metadata cannot be read has one command that says so, and that nobody can type.
    """
    import importlib.metadata  # takes a fifth of the time of `grpo --help`

    owners = set()
    for distribution in importlib.metadata.distributions():
        owner = str(getattr(distribution, "_path", "?"))
        try:
            text = distribution.read_text("entry_points.txt") or ""
            if f"[{GROUP}]" not in text:
                continue
            name = distribution.metadata["Name"]
            owner = (
                f"{re.sub('[-_.]+', '-', name).lower()} {distribution.metadata['Version'] or '?'}"
            )
            if importlib.metadata.distribution(name).read_text("entry_points.txt") != text:
                continue  # another one of this name comes first
            if owner in owners:
                continue  # a folder may be on the path twice
            owners.add(owner)
            entries = {
                (" ".join(entry.name.split()), entry.value)
                for entry in distribution.entry_points.select(group=GROUP)
            }
        except Exception as error:  # noqa: BLE001 - metadata of other projects may hold anything
            problem = f"its metadata cannot be read: {type(error).__name__}: {error}"
            yield PluginCommand("?", "", "", owner, problem)
            continue
        for entry_name, module in sorted(entries):
            yield _described(PluginCommand(entry_name, module, "", owner))


def _described(command: PluginCommand) -> PluginCommand:
    """Return a command with its help, or with the reason why it cannot be used."""
    if not command.can_be_typed:
        problem = "its name is not at most four lower-case words of letters, digits and hyphens"
        return replace(command, problem=problem)
    if not re.fullmatch(r"\w+(\.\w+)*", command.module):
        problem = f"its value is {command.module!r}; write the name of a module, without `:app`"
        return replace(command, problem=problem)
    try:
        file = source_file(command.module)
        if file is None:
            return replace(command, problem=f"its module {command.module} is not installed")
        if not file.is_file():  # it can be imported from elsewhere, as from an archive
            return command
        changed_ns = file.stat().st_mtime_ns
        command = replace(command, file=str(file), changed_ns=changed_ns)
        name = command.name.partition(" --")[0].rpartition(" ")[2]
        return replace(command, help=help_line(file, name))
    except Exception as error:  # noqa: BLE001 - a source may be too deep to be parsed
        problem = f"its source cannot be read: {type(error).__name__}: {error}"
        return replace(command, problem=problem)
