"""Recognise the policy's turns in the history that an agent's client sends back.

A client may send a turn with its thoughts apart, with the thoughts and their tags in the content,
or without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from grpo_core.protocol.thoughts import Tags, split_thoughts
from grpo_core.protocol.types import Message


def is_sent_back(sent: Message, known: Message, tags: Tags | None) -> bool:
    """Return whether a message of a request says what a known one does.

    The ids of calls may differ, and thoughts may be missing.

    Args:
        sent: the message of the request.
        known: a message of the history: a turn of the policy, or of somebody else.
        tags: the texts that open and close the policy's thoughts; None: it has none.
    """
    if sent.role != known.role or _calls(sent) != _calls(known):
        return False
    if sent.content == known.content:
        return sent.thoughts.strip() in ("", known.thoughts.strip())
    if known.role != "assistant" or not (known.thoughts or any(known.thought_marks)):
        return False
    # A client may write an opening tag that the prompt has, or other white space.
    inline = split_thoughts(sent.content, tags, opened=not known.thought_marks[0].strip())
    said = (known.thoughts, known.content)
    return sent.content == known.raw or (inline.thoughts, inline.content) == said


def with_thoughts(
    messages: Sequence[Message], answers: Sequence[Message], tags: Tags | None
) -> tuple[Message, ...]:
    """Return the messages of a request, the policy's turns among them as they were answered.

    Args:
        messages: the messages of the request.
        answers: all turns of the policy so far; of equal ones the last one is taken.
        tags: the texts that open and close its thoughts.
    """
    thinking = [answer for answer in answers if answer.thoughts or any(answer.thought_marks)]
    return tuple(_as_answered(message, thinking, tags) for message in messages)


def _as_answered(message: Message, answers: Sequence[Message], tags: Tags | None) -> Message:
    for answer in reversed(answers):
        if message.role == "assistant" and is_sent_back(message, answer, tags):
            return replace(answer, tool_calls=message.tool_calls)
    return message


def _calls(message: Message) -> list[tuple[str, dict[str, object]]]:
    return [(call.name, dict(call.arguments)) for call in message.tool_calls or ()]
