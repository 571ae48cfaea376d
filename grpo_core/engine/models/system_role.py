"""Put a system message where a model's chat template takes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal
from weakref import WeakKeyDictionary

from grpo_core.engine.models.guarded import TrialError
from grpo_core.engine.models.templates import write_chat

SystemRole = Literal["auto", "keep", "fold"]
"""Values of the setting `model.system_role`."""
_MARK = "grpo-system-message-mark"

_taken: WeakKeyDictionary[Any, tuple[object, bool]] = WeakKeyDictionary()
"""For each tokenizer its template with the arguments, and whether that takes system messages."""


def replaced_system(
    messages: Sequence[Mapping[str, Any]], system_prompt: str | None
) -> list[Mapping[str, Any]]:
    """Return a chat with another system message.

    Args:
        messages: the chat.
        system_prompt: the text that replaces the system message; "" removes it, None keeps it.
    """
    if system_prompt is None:
        return list(messages)
    rest = [m for place, m in enumerate(messages) if place or m["role"] != "system"]
    return [{"role": "system", "content": system_prompt}, *rest] if system_prompt else rest


def folded_system(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return a chat whose system message stands at the beginning of the first user message."""
    if not messages or messages[0]["role"] != "system":
        return list(messages)
    system, *rest = messages
    if rest and rest[0]["role"] == "user":
        parts = [text for text in (system["content"], rest[0]["content"]) if text]
        return [{**rest[0], "content": "\n\n".join(parts)}, *rest[1:]]
    return [{**system, "role": "user"}, *rest]


def folds_system(tokenizer: Any, role: SystemRole, arguments: Mapping[str, Any]) -> bool:
    """Return whether system messages are folded into the first user message.

    With "auto" they are where the template takes a user message alone, but refuses a system message
    before it or leaves that out.

    Args:
        tokenizer: has the template.
        role: the setting `model.system_role`.
        arguments: further variables of the template.
    """
    if role != "auto":
        return role == "fold"
    state = (tokenizer.chat_template, dict(arguments))
    if tokenizer not in _taken or _taken[tokenizer][0] != state:
        _taken[tokenizer] = (state, _takes_system(tokenizer, arguments))
    return not _taken[tokenizer][1]


def _takes_system(tokenizer: Any, arguments: Mapping[str, Any]) -> bool:
    """Return whether a template writes a system message; True if it refuses any chat."""
    user = {"role": "user", "content": "?"}
    options: dict[str, Any] = {"add_generation_prompt": True, "arguments": arguments}
    try:
        write_chat(tokenizer, [user], **options)
    except TrialError:  # the prompt itself will show why
        return True
    try:
        text = write_chat(tokenizer, [{"role": "system", "content": _MARK}, user], **options)
    except TrialError:
        return False
    return _MARK in text
