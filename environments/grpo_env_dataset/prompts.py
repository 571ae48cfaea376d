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
            for name in self._fields:
                value, _ = string.Formatter().get_field(name, (), row)
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
        return text


def _fields(template: str) -> Iterator[str]:
    """Yield the fields that a template names, also those in the format of another field."""
    parts: Any = string.Formatter().parse(template)
    for _, name, spec, _ in parts:
        if name is not None:
            yield name
            yield from _fields(spec or "")
