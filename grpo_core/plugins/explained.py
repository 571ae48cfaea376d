"""Describe the settings of a component from the source of its Config."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import textwrap
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Setting:
    """Describes a setting of an environment, judge or sandbox."""

    key: str
    """The dotted name, as after --set."""
    hint: Any
    """Its type."""
    default: Any
    """Its default; `dataclasses.MISSING` if there is none."""
    meaning: str
    """The docstring below the field; "" if there is none."""


def settings_of_config(config_class: Any, prefix: str) -> Iterator[Setting]:
    """Yield every setting of a Config; a setting that is a dataclass is replaced by its fields.

    Args:
        config_class: the dataclass.
        prefix: the path of these settings in a recipe, such as "env".
    """
    hints = typing.get_type_hints(config_class, include_extras=True)
    meanings = _docstrings(config_class)
    for field in dataclasses.fields(config_class):
        key, hint = f"{prefix}.{field.name}", hints[field.name]
        if dataclasses.is_dataclass(hint):
            yield from settings_of_config(hint, key)
            continue
        made = field.default_factory
        default = field.default if made is dataclasses.MISSING else made()
        yield Setting(key, hint, default, meanings.get(field.name, ""))


def _docstrings(config_class: type) -> dict[str, str]:
    """Return the docstrings of the fields of a class and its bases, by field."""
    meanings: dict[str, str] = {}
    for base in reversed(config_class.__mro__):
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError, SyntaxError):  # its source is not kept
            continue
        body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
        for field, after in itertools.pairwise(body):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
                and isinstance(after.value.value, str)
            ):
                meanings[field.target.id] = " ".join(after.value.value.split())
    return meanings
