"""Find the settings that need the user's consent if a stranger wrote them.

Types decide, and the marks of `grpo_core.protocol.consent`; whether a name would be imported from a
file is asked of the function that the loader asks. Nothing is imported but installed components.
"""

from __future__ import annotations

import functools
import json
import os
import types
import typing
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from grpo_core.plugins.declared import (
    NO_DEFAULT,
    SCALARS,
    fields,
    is_choice,
    is_harmless,
    is_kind_of,
    is_section,
    plain,
    without_marks,
)
from grpo_core.plugins.host import PluginHost
from grpo_core.protocol.consent import Harmless, Names, NamesFile, NeedsConsent, SettingsOf
from grpo_core.protocol.errors import GrpoError
from grpo_core.protocol.hookspecs import Kind
from grpo_core.protocol.spec import names_file

Path = tuple[str, ...]
"""The keys that lead to a setting, from the outermost section."""
_PLAIN_TYPES = (Any, object, str)
"""The types of which a number stays a number or is refused."""


@dataclass(frozen=True, slots=True)
class Risk:
    """Hold a setting that needs consent."""

    path: Path
    """The keys that lead to it."""
    value: str
    """What it is set to, as text."""
    is_key: bool = False
    """The last key is what needs consent, whatever it leads to."""

    @property
    def name(self) -> str:
        """Return the dotted name; keys with a dot are quoted, as after --set."""
        return ".".join(f'"{key}"' if {".", '"'} & set(key) else key for key in self.path)


def risks(section_class: type, values: Mapping[str, Any]) -> list[Risk]:
    """Return the settings that need consent.

    Args:
        section_class: the class that describes them, a dataclass or a pydantic model.
        values: the settings, checked or as they stand in a file. A key that the class does not have
            counts as one that needs consent.
    """
    return list(_Search().section(section_class, values, ()))


@dataclass(frozen=True, slots=True)
class _Beside:
    """Hold what stands beside a value."""

    section: Mapping[str, Any]
    """The section that the value is in."""
    key: str
    """The key of that section, if it is a member of a table."""


class _Search:
    """Search settings for what needs consent. Plugins are looked up once, if at all."""

    @functools.cached_property
    def _host(self) -> PluginHost:
        return PluginHost()

    def section(
        self, section_class: type | None, values: Mapping[str, Any], path: Path, *, key: str = ""
    ) -> Iterator[Risk]:
        """Yield the risks of a section.

        Args:
            section_class: the class that describes it; None if it is not known.
            values: its settings.
            path: the keys that lead to it.
            key: its key in a table of such sections.
        """
        described = {} if section_class is None else fields(section_class)
        for name, value in values.items():
            hint, default = described.get(name, (Any, NO_DEFAULT))
            if default is NO_DEFAULT or plain(value) != plain(default):
                yield from self._value(hint, value, (*path, name), _Beside(values, key))

    def _value(self, hint: Any, value: Any, path: Path, beside: _Beside) -> Iterator[Risk]:
        hint, marks = without_marks(hint)
        for mark in marks:
            if isinstance(mark, Harmless):
                return
            if isinstance(mark, NeedsConsent):
                owner = f", for {beside.section.get(mark.of)}" if mark.of else ""
                yield Risk(path, f"{_text(value)}{owner}")
                return
            if isinstance(mark, Names):
                yield from (risk for risk in _everything(value, path) if names_file(risk.value))
                return
            if isinstance(mark, NamesFile):
                if isinstance(value, str) and os.path.isabs(value) and os.path.exists(value):
                    yield Risk(path, value)
                return
            if isinstance(mark, SettingsOf) and isinstance(value, Mapping):
                yield from self._settings(mark, value, path, beside)
                return
        if value is not None and not is_harmless(hint):
            yield from self._of_type(hint, value, path, beside)

    def _of_type(self, hint: Any, value: Any, path: Path, beside: _Beside) -> Iterator[Risk]:
        """Yield the risks of a value whose type has no marks and is not harmless as a whole."""
        origin, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
        if origin in (typing.Union, types.UnionType):
            members = [member for member in arguments if not is_harmless(member)]
            if not any(is_choice(member, value) for member in arguments):
                yield from dict.fromkeys(
                    risk for member in members for risk in self._value(member, value, path, beside)
                )
        elif isinstance(value, Mapping) and is_section(origin):
            yield from self.section(origin, value, path, key=path[-1])
        elif isinstance(value, Mapping) and is_kind_of(origin, Mapping):
            yield from self._table(arguments or (Any, Any), value, path, beside)
        elif is_kind_of(origin, Collection) and not is_kind_of(origin, (str, bytes, Mapping)):
            yield from self._items(origin, arguments, value, path, beside)
        elif not isinstance(value, SCALARS):
            yield from _everything(value, path)
        elif not (hint in _PLAIN_TYPES or is_section(origin) or is_kind_of(origin, Mapping)):
            yield Risk(path, _text(value))  # such as an address, which a number gives as well

    def _table(
        self, hints: tuple[Any, ...], values: Mapping[str, Any], path: Path, beside: _Beside
    ) -> Iterator[Risk]:
        """Yield the risks of a mapping, whose keys are texts that a stranger may have chosen."""
        key_hint, value_hint = hints
        _, key_marks = without_marks(key_hint)
        names_component = any(isinstance(mark, Names) for mark in key_marks)
        for key, value in values.items():
            if names_component and names_file(key):
                yield Risk((*path, key), key, is_key=True)
            if names_component or is_harmless(key_hint):
                yield from self._value(value_hint, value, (*path, key), beside)
            else:
                yield from _everything({key: value}, path)

    def _items(
        self, origin: Any, arguments: tuple[Any, ...], value: Any, path: Path, beside: _Beside
    ) -> Iterator[Risk]:
        """Yield the risks of a list, or of the text that is read as one."""
        hints = [argument for argument in arguments if argument is not Ellipsis] or [Any]
        if not isinstance(value, list | tuple):
            if not all(map(is_harmless, hints)):
                yield from self._value(hints[0], value, path, beside)
            return
        is_fixed = origin is tuple and Ellipsis not in arguments and len(hints) == len(value)
        for index, item in enumerate(value):
            hint = hints[index if is_fixed else 0]
            yield from self._value(hint, item, (*path, str(index)), beside)

    def _settings(
        self, mark: SettingsOf, values: Mapping[str, Any], path: Path, beside: _Beside
    ) -> Iterator[Risk]:
        """Yield the risks of a component's settings; without its Config every text is one."""
        if not values:
            return
        name = beside.section.get(mark.by) if mark.by else beside.key
        config_class = self._config_class(cast(Kind, mark.kind), name)
        yield from self.section(config_class, values, path)

    def _config_class(self, kind: Kind, name: Any) -> type | None:
        """Return the Config of a component; None if it is in a file or cannot be loaded."""
        if not isinstance(name, str) or names_file(name):
            return None
        try:
            config_class = getattr(self._host.load(kind, name), "Config", None)
        except GrpoError:  # reported where the component is needed
            return None
        return config_class if is_section(config_class) else None


def _everything(value: Any, path: Path) -> Iterator[Risk]:
    """Yield all that is not a number, a switch or nothing; in a mapping, every entry."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            inner = list(_everything(item, (*path, str(key))))
            yield from inner or [Risk((*path, str(key)), _text(item))]
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _everything(item, (*path, str(index)))
    elif not isinstance(value, SCALARS):
        yield Risk(path, _text(value))


def _text(value: Any) -> str:
    """Return a value as text: a text as it is, and anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, default=str)
