"""Split the turns of logs that were written before turns were split where they were drawn."""

from __future__ import annotations

from collections.abc import Iterable

from grpo_core.protocol.thoughts import DEFAULT_TAGS, Tags
from grpo_core.protocol.types import Message


def split_older_turns(
    messages: Iterable[Message], tags: Tags | None = DEFAULT_TAGS
) -> tuple[Message, ...]:
    """Return messages in which each turn of the policy is split; one that is split is kept.

    Args:
        messages: the messages of a log.
        tags: the texts that open and close thoughts; None: nothing is a thought.
    """
    return tuple(
        Message.turn(message.content, tags, tool_calls=message.tool_calls)
        if message.role == "assistant" and not (message.thoughts or any(message.thought_marks))
        else message
        for message in messages
    )
