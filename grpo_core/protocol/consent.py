"""Mark the settings of a Config by what a stranger who wrote them could do with them.

A run folder or a recipe may come from anyone. Settings that could run code, read files or send data
need the consent of the user before such a file is used. Numbers, switches and choices (`Literal`,
an `Enum`) are harmless by their types. A text, a list or a mapping is harmless only if the author
says so, as in `unit_name: Annotated[str, Harmless] = "m"`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Harmless:
    """Mark a setting whose every value may come from a stranger.

    It is only shown, compared or sent where everything else goes: it never becomes a path, an
    address, a variable's name, an argument of a program, a pattern or a template, and nothing is
    loaded by it. On a type of keys, as in `dict[Annotated[str, Harmless], Any]`, it speaks of the
    keys alone.
    """


@dataclass(frozen=True, slots=True)
class NeedsConsent:
    """Mark a setting that needs consent although its type is that of a number, switch or choice."""

    of: str = ""
    """The field beside it whose value belongs to the consent, such as the model whose code is
    run."""


@dataclass(frozen=True, slots=True)
class Names:
    """Mark the name of a component, which is harmless as long as it names no file."""


@dataclass(frozen=True, slots=True)
class NamesFile:
    """Mark a text that is harmless unless it is the absolute path of a file, which is read."""


@dataclass(frozen=True, slots=True)
class SettingsOf:
    """Mark the table of a component's settings, which the component's own Config describes."""

    kind: str
    """The kind of the component, as in `Kind`."""
    by: str
    """The field beside it that names the component; "" if the section is a member of a table and
    bears the component's name there."""
