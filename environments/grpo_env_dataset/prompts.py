"""Make the prompt of a row, and refuse a row that has nothing to ask."""

from __future__ import annotations

import ast
import contextlib
import json
import math
import string
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from grpo_core import ConfigError, Message
from grpo_env_dataset.answers import is_blank
from grpo_env_dataset.rows import BadRowError, Row

USUAL_FIELDS = (
    "prompt",
    "question",
    "problem",
    "instruction",
    "query",
    "messages",
    "conversations",
    "input",
    "text",
)
"""The fields that hold the prompt in most data sets, the likeliest first."""
_ROLES: Mapping[object, str] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
}
"""What the authors of messages are called."""


class BadPromptError(BadRowError):
    """A row cannot be asked."""


class Prompt:
    """A template, which has the fields of a row in braces.

    A template that is one field takes a list of messages from it, too.
    """

    def __init__(self, template: str) -> None:
        self._template = template
        try:
            self._fields = list(_fields(template))
        except ValueError as error:
            raise ConfigError(f"env.prompt {template!r} is not a template: {error}") from None
        if not self._fields:
            name = template if template.isidentifier() else "question"
            raise ConfigError(
                f"env.prompt {template!r} names no field of the rows, so each would be asked the "
                f"same; write the field in braces, as in --set 'env.prompt={{{name}}}'"
            )

    @classmethod
    def usual(cls, rows: Sequence[Row]) -> Prompt:
        """Return the template of the first usual field that most rows have.

        Raises:
            ConfigError: there is none.
        """
        for name in USUAL_FIELDS:
            if 2 * sum(name in row for row in rows) > len(rows):
                return cls(f"{{{name}}}")
        fields = ", ".join(dict.fromkeys(key for row in rows[:100] for key in row)) or "none"
        raise ConfigError(
            f"no field of the rows ({fields}) holds a prompt by its name "
            f"({', '.join(USUAL_FIELDS)}): set env.prompt, such as "
            f"--set 'env.prompt={{{next(iter(rows[0]), 'question')}}}'"
        )

    def fill(self, row: Row) -> str | tuple[Message, ...]:
        """Return the prompt of a row: the user's text, or the messages that the row holds.

        Raises:
            BadPromptError: a field that it names is missing, or holds nothing that can be asked.
        """
        try:
            values = [string.Formatter().get_field(name, (), row)[0] for name in self._fields]
            is_alone = len(values) == 1 and self._template == f"{{{self._fields[0]}}}"
            chat = _listed_messages(values[0]) if is_alone else None
            if chat is not None:
                return _messages(chat, f"the field {self._fields[0]!r}")
            for name, value in zip(self._fields, values, strict=True):
                _check_value(name, value)
            text = self._template.format(**row)
        except (KeyError, IndexError, ValueError, AttributeError, TypeError) as error:
            reason = f"there is no field {error}" if isinstance(error, KeyError) else str(error)
            raise BadPromptError(
                f"env.prompt {self._template!r} does not fit: {reason}",
                f"the row has {', '.join(row) or 'none'}",
            ) from None
        if is_blank(text):
            raise BadPromptError(f"env.prompt {self._template!r} gives an empty text")
        if values and all(isinstance(value, str) and is_blank(value) for value in values):
            names = " and ".join(map(repr, dict.fromkeys(self._fields)))
            raise BadPromptError(f"the row has nothing in {names}, which env.prompt asks")
        return text


def _listed_messages(value: Any) -> list[Any] | None:
    """Return the messages in a value: a list, or one that is written as text, as CSV files do."""
    if isinstance(value, list):
        return value
    if not isinstance(value, str) or not value.lstrip().startswith("[") or "role" not in value:
        return None
    for read in (json.loads, ast.literal_eval):
        with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            items = read(value.strip())
            if isinstance(items, list) and items and all(isinstance(i, dict) for i in items):
                return items
    return None


def _check_value(name: str, value: Any) -> None:
    """Raise BadPromptError if a value cannot be a part of a text that is asked."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        raise BadPromptError(
            f"the field {name!r} of env.prompt is {'null' if value is None else 'NaN'}"
        )
    if isinstance(value, list | dict):
        kind = "a list" if isinstance(value, list) else "an object"
        if not value:
            raise BadPromptError(f"the row has nothing in {name!r}, which env.prompt asks")
        inside = "[0]" if isinstance(value, list) else f"[{next(iter(value))}]"
        raise BadPromptError(
            f"the field {name!r} of env.prompt is {kind}; name what is in it, as in "
            f"{{{name}{inside}}}, or give a list of messages alone"
        )


def _messages(items: Sequence[Any], where: str) -> tuple[Message, ...]:
    """Return the messages of a conversational row.

    Raises:
        BadPromptError: they are no messages, or end with a turn of the assistant.
    """
    if not items:
        raise BadPromptError(f"{where} is an empty list; it must be a text or a list of messages")
    messages = [_message(item, where) for item in items]
    if messages[-1].role != "user":
        raise BadPromptError(
            f"the last message in {where} is of the role {messages[-1].role!r}; a prompt ends with "
            "a message of the user: move the reply into a field of its own, which env.answer names"
        )
    if all(is_blank(message.content) for message in messages if message.role == "user"):
        raise BadPromptError(f"the messages of the user in {where} are empty")
    return tuple(messages)


def _message(item: Any, where: str) -> Message:
    """Return one message, {"role": ..., "content": ...} or {"from": ..., "value": ...}."""
    expected = 'a list of messages like {"role": "user", "content": "..."}'
    if not isinstance(item, dict):
        raise BadPromptError(f"{where} is a list, but not {expected}", f"{item!r:.60}")
    author, content = item.get("role", item.get("from")), item.get("content", item.get("value"))
    if author not in _ROLES:
        raise BadPromptError(
            f"a message in {where} has the role {author!r}; it must be system, user or assistant"
        )
    if isinstance(content, list):  # parts, as models that see pictures take them
        parts = [part.get("text") if isinstance(part, dict) else None for part in content]
        if any(not isinstance(part, str) for part in parts):
            raise BadPromptError(f"a message in {where} has parts that are no texts")
        content = "".join(map(str, parts))
    if not isinstance(content, str):
        raise BadPromptError(f"a message in {where} has no text as its content", f"{item!r:.60}")
    return Message(_ROLES[author], content)  # type: ignore[arg-type]


def _fields(template: str) -> Iterator[str]:
    """Yield the fields that a template names, also those in the format of another field."""
    parts: Any = string.Formatter().parse(template)
    for _, name, spec, _ in parts:
        if name is not None:
            yield name
            yield from _fields(spec or "")
