"""Make the prompt of a row, and refuse a row that has nothing to ask."""

from __future__ import annotations

import math
import string
from collections.abc import Iterator
from typing import Any

from grpo_core import ConfigError
from grpo_env_dataset.answers import is_blank
from grpo_env_dataset.rows import BadRowError, Row


class BadPromptError(BadRowError):
    """A row cannot be asked."""


class Prompt:
    """A template, which has the fields of a row in braces."""

    def __init__(self, template: str) -> None:
        self._template = template
        try:
            self._fields = list(_fields(template))
        except ValueError as error:
            raise ConfigError(f"env.prompt {template!r} is not a template: {error}") from None

    def fill(self, row: Row) -> str:
        """Return the prompt of a row.

        Raises:
            BadPromptError: a field that it names is missing, or holds nothing.
        """
        try:
            values = [string.Formatter().get_field(name, (), row)[0] for name in self._fields]
            for name, value in zip(self._fields, values, strict=True):
                if value is None or (isinstance(value, float) and math.isnan(value)):
                    empty = "null" if value is None else "NaN"
                    raise BadPromptError(f"the field {name!r} of env.prompt is {empty}")
            text = self._template.format(**row)
        except (KeyError, IndexError, ValueError, AttributeError, TypeError) as error:
            reason = f"there is no field {error}" if isinstance(error, KeyError) else str(error)
            raise BadPromptError(
                f"env.prompt {self._template!r} does not fit: {reason}",
                f"the row has {', '.join(row) or 'none'}",
            ) from None
        if is_blank(text):
            raise BadPromptError(f"env.prompt {self._template!r} gives an empty text")
        if values and all(map(_is_empty, values)):
            names = " and ".join(map(repr, dict.fromkeys(self._fields)))
            raise BadPromptError(f"the row has nothing in {names}, which env.prompt asks")
        return text


def _is_empty(value: Any) -> bool:
    """Return whether a value has nothing to read: a blank text, or a list or object of nothing."""
    return is_blank(value) if isinstance(value, str) else value in ([], {})


def _fields(template: str) -> Iterator[str]:
    """Yield the fields that a template names, also those in the format of another field."""
    parts: Any = string.Formatter().parse(template)
    for _, name, spec, _ in parts:
        if name is not None:
            yield name
            yield from _fields(spec or "")
