"""Read answers that `grpo env score` judges from a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, get_args

from grpo_core import Message, Rollout, TaskKey, UserError
from grpo_core.api.protocol import Role
from grpo_core.api.runs import saved_rollout
from grpo_core.config.user_files import numbered_lines, parse_value

_THOUGHTS = ("thoughts", "thought_marks")
"""The further fields that a message of a dialogue may have."""


def read_recorded(text: str, key: TaskKey) -> Rollout | None:
    """Return the rollout of an agent in a line of rollouts.jsonl; None if the text is none.

    Raises:
        UserError: it is of another task, or what the agent returned was too long for the line.
    """
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict) or not {"key", "messages", "finish"} <= fields.keys():
        return None
    place = {name: getattr(key, name) for name in ("split", "index", "seed", "level")}
    if (other := {name: fields["key"].get(name) for name in place}) != place:
        options = " ".join(f"--{name} {value}" for name, value in other.items())
        raise UserError(f"the line is of another task; score it with {options}")
    rollout = saved_rollout(fields, is_split=False)
    if rollout is None:
        raise UserError(
            f"what the agent returned, {fields['returned_length']} characters of JSON, was too "
            "long for rollouts.jsonl; score another line, or its turns"
        )
    return rollout


def read_dialogue(text: str) -> list[Message] | None:
    """Return the messages of a dialogue as JSON lines; None if the first line is not like one.

    Raises:
        UserError: a line is no valid message, or the last is not a turn of the policy.
    """
    messages = list[Message]()
    for number, line in numbered_lines(text):
        try:
            messages.append(_read_message(line, where=f"line {number} of the dialogue"))
        except UserError:
            if messages or _is_like_message(line):
                raise
            return None
    if messages and not is_turn(messages[-1]):
        raise UserError(
            f"the dialogue ends with a message of the role {messages[-1].role!r}; it has to end "
            'with a turn of the policy, whose role is "assistant"'
        )
    return messages or None


def _is_like_message(line: str) -> bool:
    """Return whether a line is a JSON object with `role` and `content`, whatever these are."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(fields, dict) and {"role", "content"} <= fields.keys()


def _read_message(line: str, *, where: str) -> Message:
    """Return the message of a line of a dialogue.

    Raises:
        UserError: the line is not JSON, or has another form.
    """
    fields = parse_value(line, where=where)
    if (
        not isinstance(fields, dict)
        or not {"role", "content"} <= fields.keys() <= {"role", "content", *_THOUGHTS}
        or fields["role"] not in get_args(Role)
        or not isinstance(fields["content"], str)
        or not _has_valid_thoughts(fields)
    ):
        raise UserError(
            f"{where} is no message; each line must be an object with `role` "
            f"({', '.join(get_args(Role))}) and `content`, a text, and nothing else but, of a "
            "turn of the policy, `thoughts` and `thought_marks` as in rollouts.jsonl"
        )
    return Message.from_json(fields)


def _has_valid_thoughts(fields: Mapping[str, Any]) -> bool:
    """Return whether the thoughts of a message, if it has some, are a text between two others."""
    marks = fields.get("thought_marks", ["", ""])
    return (
        isinstance(fields.get("thoughts", ""), str)
        and isinstance(marks, list)
        and [type(mark) for mark in marks] == [str, str]
    )


def is_turn(message: Message) -> bool:
    """Return whether a message is the policy's."""
    return message.role == "assistant"
