"""Read what the types of a Config, and the marks on them, say about its settings."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from grpo_core.protocol.consent import Harmless, Names, NamesFile, NeedsConsent, SettingsOf

SCALARS = (bool, int, float, type(None))
"""The types of JSON that hold no text."""
NO_DEFAULT = object()
"""Stands for the default of a setting that has none."""
_MARKS = (Harmless, NeedsConsent, Names, NamesFile, SettingsOf)


def fields(section_class: type) -> dict[str, tuple[Any, Any]]:
    """Return the type and the default of each field of a dataclass or a pydantic model."""
    try:
        hints = typing.get_type_hints(section_class, include_extras=True)
    except Exception:  # noqa: BLE001 - the annotations of a plugin may name anything
        hints = {}
    if issubclass(section_class, BaseModel):
        return {
            name: (
                hints.get(name, Any),
                NO_DEFAULT
                if info.is_required()
                else info.get_default(call_default_factory=True, validated_data={}),
            )
            for name, info in section_class.model_fields.items()
        }
    described: Any = section_class
    return {
        field.name: (hints.get(field.name, Any), _default(field))
        for field in dataclasses.fields(described)
    }


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return NO_DEFAULT if field.default is dataclasses.MISSING else field.default


def without_marks(hint: Any) -> tuple[Any, list[Any]]:
    """Return a type without its marks, and the marks; a class of marks stands for one of them."""
    marks: list[Any] = []
    while True:
        if typing.get_origin(hint) is typing.Annotated:
            hint, *metadata = typing.get_args(hint)
            marks += [item() if item in _MARKS else item for item in metadata if _is_mark(item)]
        elif hasattr(hint, "__value__"):  # type NAME = ...
            hint = hint.__value__
        elif isinstance(hint, typing.NewType):
            hint = hint.__supertype__
        else:
            return hint, marks


def _is_mark(item: Any) -> bool:
    return isinstance(item, _MARKS) or (isinstance(item, type) and issubclass(item, _MARKS))


def is_harmless(hint: Any) -> bool:
    """Return whether every value of a type is harmless: numbers, switches, choices, declared."""
    hint, marks = without_marks(hint)
    if marks:
        return all(isinstance(mark, Harmless) for mark in marks)
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return all(map(is_harmless, typing.get_args(hint)))
    if origin is typing.Literal or hint is None:
        return True
    return isinstance(hint, type) and (hint in SCALARS or issubclass(hint, enum.Enum))


def is_choice(hint: Any, value: Any) -> bool:
    """Return whether a text is one of the choices that a type lists."""
    hint, _ = without_marks(hint)
    return typing.get_origin(hint) is typing.Literal and value in typing.get_args(hint)


def is_section(hint: Any) -> bool:
    """Return whether a type holds settings of its own: a dataclass or a model of pydantic."""
    return isinstance(hint, type) and (
        dataclasses.is_dataclass(hint) or issubclass(hint, BaseModel)
    )


def is_kind_of(origin: Any, base: Any) -> bool:
    """Return whether `origin` is a class that derives from `base`; it may be anything."""
    return isinstance(origin, type) and issubclass(origin, base)


def plain(value: Any) -> Any:
    """Return a value with lists in place of tuples, and mappings in place of sections."""
    if isinstance(value, BaseModel):
        return plain(value.model_dump())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain(dataclasses.asdict(value))
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value
