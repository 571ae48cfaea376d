"""Read a command's options into one object, and from it the settings that they stand for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

Options = TypeVar("Options")


@dataclass(frozen=True, slots=True)
class Sets:
    """Name the setting that an option stands for; stands beside `typer.Option` in its type."""

    name: str


def takes(options_type: type[Options]) -> Callable[[Callable[[Options], None]], Any]:
    """Return a decorator that gives a command's function the options as one object.

    Typer reads a command's options from the parameters of its function. Here it reads them from the
    fields of a dataclass, so that the function can hand them on as one.

    Args:
        options_type: a dataclass with a field for each option, in the order of the help page.
    """

    def decorate(command: Callable[[Options], None]) -> Callable[..., None]:
        def parsed(**values: Any) -> None:
            command(options_type(**values))

        types = get_type_hints(options_type, include_extras=True)
        signature = inspect.signature(options_type)
        parameters = [
            parameter.replace(annotation=types[name], kind=inspect.Parameter.KEYWORD_ONLY)
            for name, parameter in signature.parameters.items()
        ]
        parsed.__name__, parsed.__doc__ = command.__name__, command.__doc__
        parsed.__annotations__ = types
        parsed.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return parsed

    return decorate


def settings_of(options: object) -> dict[str, Any]:
    """Return the settings that the given options stand for, by their dotted names.

    A path becomes an absolute one as text, since a run may be continued from another folder.

    Args:
        options: the object of a dataclass whose fields name settings by `Sets`.
    """
    types = get_type_hints(type(options), include_extras=True)
    settings = {
        mark.name: getattr(options, name)
        for name, annotation in types.items()
        for mark in getattr(annotation, "__metadata__", ())
        if isinstance(mark, Sets)
    }
    return {
        name: str(value.expanduser().absolute()) if isinstance(value, Path) else value
        for name, value in settings.items()
        if is_given(value)
    }


def by_flag(options: object, flags: Iterable[str]) -> dict[str, Any]:
    """Return the values of options by their names on the command line; None for one not given.

    Args:
        options: an object with a field for each option, named like it.
        flags: the options, such as "--key-env".
    """
    values = {flag: getattr(options, flag[2:].replace("-", "_")) for flag in flags}
    return {flag: value if is_given(value) else None for flag, value in values.items()}


def is_given(value: object) -> bool:
    """Return whether a value is that of an option on the command line, and not a default."""
    return not (value is None or value is False or value == [])
