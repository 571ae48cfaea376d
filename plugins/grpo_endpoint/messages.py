"""The messages of a chat: their fields, and what they are for the policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from grpo_core import Message, ToolCall
from grpo_endpoint.errors import ApiError
from grpo_endpoint.fields import Body, Content, Name, Only, TextPart, joined, json_object

MAX_CALLS = 1024
"""Calls of one message."""


class SystemMessage(Body):
    """Instructions for the policy."""

    role: Literal["system", "developer"]
    content: Content
    name: Name | None = None
    """Changes nothing."""


class UserMessage(Body):
    """Hold a message of the user."""

    role: Literal["user"]
    content: Content
    name: Name | None = None
    """Changes nothing."""


class CalledFunction(Body):
    """A function and the arguments of a call."""

    name: Name
    arguments: str
    """A JSON object, as a text."""

    @field_validator("arguments")
    @classmethod
    def _check_arguments(cls, text: str) -> str:
        json_object(text)
        return text


class AssistantCall(Body):
    """A call of a tool."""

    id: Annotated[Name, Field(min_length=1)]
    type: Literal["function"]
    function: CalledFunction


class AssistantMessage(Body):
    """Hold an earlier message of the policy."""

    role: Literal["assistant"]
    content: Content | None = None
    tool_calls: (
        Annotated[list[AssistantCall], Field(min_length=1, max_length=MAX_CALLS, fail_fast=True)]
        | None
    ) = None
    name: Name | None = None
    """Changes nothing."""
    reasoning_content: str | None = None
    """What it thought before; a message without it continues the same completion."""
    reasoning: str | None = None
    """Another name of `reasoning_content`."""
    refusal: str | None = None
    """Changes nothing."""
    annotations: list[Any] | None = None
    """Changes nothing."""
    audio: Annotated[Any, Only((None,))] = None
    """Not supported."""
    function_call: Annotated[Any, Only((None,))] = None
    """Not supported; see `tool_calls`."""


class ToolMessage(Body):
    """The result of a call."""

    role: Literal["tool"]
    content: Content
    tool_call_id: Name
    """The id of the call. Results follow the message with the calls, one for each."""
    name: Name | None = None
    """Changes nothing."""


ChatMessage = Annotated[
    SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")
]


def chat_messages(chat: Sequence[ChatMessage]) -> tuple[Message, ...]:
    """Return the messages of a chat, the results of tools in the order of their calls.

    Raises:
        ApiError: a call has no result, or a result belongs to no call.
    """
    messages: list[Message] = []
    place = 0
    while place < len(chat):
        message = chat[place]
        place += 1
        if isinstance(message, ToolMessage):
            raise _wrong_results(
                place - 1, f"the result of {message.tool_call_id!r} follows no such call"
            )
        if not isinstance(message, AssistantMessage):
            role = "system" if message.role == "developer" else message.role
            messages.append(Message(role, joined(message.content)))
            continue
        thoughts = message.reasoning_content or message.reasoning or ""
        calls = message.tool_calls
        if not calls:
            messages.append(Message("assistant", joined(message.content), thoughts=thoughts))
            continue
        messages.append(
            Message(
                "assistant",
                joined(message.content),
                tuple(
                    ToolCall(call.function.name, json_object(call.function.arguments), call.id)
                    for call in calls
                ),
                thoughts,
            )
        )
        results = _results(chat[place : place + len(calls)], calls, place)
        messages += [Message("tool", joined(results[call.id])) for call in calls]
        place += len(calls)
    return tuple(messages)


def _results(
    chat: Sequence[ChatMessage], calls: Sequence[AssistantCall], place: int
) -> Mapping[str, str | list[TextPart]]:
    """Return the results of calls by their ids, from the messages at `place` that follow them.

    Raises:
        ApiError: they are not the results of all calls.
    """
    results = {
        message.tool_call_id: message.content
        for message in chat
        if isinstance(message, ToolMessage)
    }
    ids = [call.id for call in calls]
    if missing := [call_id for call_id in ids if call_id not in results]:
        raise _wrong_results(place, f"the call {missing[0]!r} has no result")
    if len({*ids}) < len(ids):
        raise _wrong_results(place - 1, "two calls have the same id")
    return results


def _wrong_results(place: int, problem: str) -> ApiError:
    return ApiError(
        400,
        f"messages.{place}: {problem}; a message with tool_calls has to be followed by one message "
        "of the role tool for each of them, with its tool_call_id",
        param=f"messages.{place}",
    )
