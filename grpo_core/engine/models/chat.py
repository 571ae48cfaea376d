"""Turn messages into tokens, through the model's chat template or as raw text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from grpo_core.engine.models.guarded import TrialError
from grpo_core.engine.models.pieces import decode, encode_after, tokenizer_errors
from grpo_core.engine.models.system_role import (
    SystemRole,
    folded_system,
    folds_system,
    replaced_system,
)
from grpo_core.engine.models.templates import template_of, write_chat
from grpo_core.extract import is_text
from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.tool_calls import (
    ToolFormat,
    calls_of,
    format_of,
    read_calls,
    sendable_calls,
    text_beside_calls,
)
from grpo_core.protocol.types import Message, ToolCall

_LAST_MESSAGE_MARK = "WHAT THE POLICY SAID 7c94f1"
"""Stands for the policy's last message while a template is rendered around it.

The tokens that the policy wrote are kept as they are and never tokenised again.
"""
_LINK = re.compile("[A-Za-z0-9]{9}")
"""An id of a call, as templates want it that link results to calls."""

_BLOCK = "<tool_call>\n{}\n</tool_call>"
"""A call as it stands in a content."""


@dataclass(frozen=True, slots=True)
class ChatFrame:
    """Holds what a chat template is given besides the messages."""

    system_prompt: str | None = None
    """Replaces the system message of the prompt; "" removes it, and None keeps it."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the template."""
    tools: Sequence[Mapping[str, Any]] = ()
    """JSON schemas of the functions that the policy may call."""
    tool_format: ToolFormat | None = None
    """How the policy writes tool calls; None: as the template teaches."""
    calls_apart: bool = False
    """Whether the policy's calls stand in `Message.tool_calls` alone, as an endpoint's clients send
    them, so that the template has to write them; otherwise they stand in the contents."""
    system_role: SystemRole = "auto"
    """Whether system messages are folded into the first user message; see `folds_system`."""


def encode(tokenizer: Any, prompt: str | tuple[Message, ...], frame: ChatFrame) -> tuple[int, ...]:
    """Return the tokens of a prompt.

    Raw text is tokenised as it is; a chat goes through the model's template and ends where the
    assistant's turn begins.

    Raises:
        ConfigError: the prompt cannot be encoded, or the model has no usable chat template.
    """
    text = render(tokenizer, prompt, frame)
    if not is_text(text):
        raise ConfigError(
            "a prompt holds half of a surrogate pair, which is not valid text and has no tokens; "
            f"remove it: {text!a:.200}"
        )
    with tokenizer_errors():
        return tuple(tokenizer(text, add_special_tokens=isinstance(prompt, str))["input_ids"])


def render(tokenizer: Any, prompt: str | tuple[Message, ...], frame: ChatFrame) -> str:
    """Return the text of a prompt: raw text as it is, a chat as the template writes it.

    Raises:
        ConfigError: the model has no usable chat template.
    """
    return prompt if isinstance(prompt, str) else _render(tokenizer, prompt, frame)


def encode_reply(
    tokenizer: Any,
    prompt: str | tuple[Message, ...],
    messages: Sequence[Message],
    reply: Sequence[Message],
    frame: ChatFrame,
    *,
    end_id: int | None,
) -> list[int]:
    """Return the tokens between the policy's last message and its next one.

    They are the environment's `reply` as the template writes it; after a raw prompt, its bare
    contents.

    Args:
        messages: the messages since the prompt, including the policy's last one.
        end_id: the end token that the policy wrote itself; None if a stop string ended its turn, in
            which case the template's end token comes first.

    Raises:
        ConfigError: the template drops the assistant's message or refuses the dialogue.
    """
    if isinstance(prompt, str):
        before, reply_text = prompt, "".join(message.content for message in reply)
        said = "".join(message.raw for message in messages)
    elif reply[0].role == "tool" and _links_calls(tokenizer):
        before, reply_text = _results_text(tokenizer, (*prompt, *messages), reply, frame)
        said = messages[-1].raw
        if end_id is None:
            reply_text = (tokenizer.eos_token or "") + reply_text
    else:
        dialogue = (*prompt, *messages[:-1], Message("assistant", _LAST_MESSAGE_MARK), *reply)
        before, mark, reply_text = _render(tokenizer, dialogue, frame).rpartition(
            _LAST_MESSAGE_MARK
        )
        said = messages[-1].raw
        if not mark:
            raise ConfigError(
                "the model's chat template leaves out the assistant's message, so a dialogue "
                "cannot continue; set model.chat_template"
            )
    end = "" if end_id is None else decode(tokenizer, [end_id])
    if not isinstance(prompt, str):
        reply_text = reply_text.removeprefix(end)
    return encode_after(tokenizer, before + said + end, reply_text)


def tool_calls(tokenizer: Any, text: str, frame: ChatFrame) -> tuple[ToolCall, ...] | None:
    """Return the calls in a turn of the policy, for `Message.tool_calls`.

    They are None if there is none, or if they are those that anybody reads in the text.

    Args:
        tokenizer: its tokenizer.
        text: the turn, with the special tokens that mark calls.
        frame: the tools, and how they are called.
    """
    if not frame.tools:
        return None
    calls = read_calls(text, _format(tokenizer, frame), frame.tools)
    return calls if calls and calls != calls_of(text) else None


def split_calls(tokenizer: Any, text: str, frame: ChatFrame) -> tuple[str, tuple[ToolCall, ...]]:
    """Return the text that the policy wrote beside its calls of tools, and these calls.

    Which they are says `sendable_calls`.

    Args:
        tokenizer: its tokenizer.
        text: the turn, with the special tokens that mark calls.
        frame: the tools, and how they are called.
    """
    if not frame.tools:
        return text, ()
    tool_format = _format(tokenizer, frame)
    calls = sendable_calls(text, tool_format, frame.tools)
    return (text_beside_calls(text, tool_format).strip(), calls) if calls else (text, ())


def _format(tokenizer: Any, frame: ChatFrame) -> ToolFormat:
    """Return how the policy writes its calls."""
    return frame.tool_format or format_of(tokenizer.chat_template)


def _results_text(
    tokenizer: Any, dialogue: Sequence[Message], reply: Sequence[Message], frame: ChatFrame
) -> tuple[str, str]:
    """Return a dialogue that ends with calls, and their results, as a template writes both.

    Raises:
        ConfigError: the template writes the dialogue before in another way once results follow.
    """
    dicts = _linked([*dialogue, *reply])
    before = _render_dicts(tokenizer, dicts[: len(dialogue)], frame, add_generation_prompt=False)
    text = _render_dicts(tokenizer, dicts, frame)
    if not text.startswith(before):
        raise ConfigError(
            "the model's chat template changes what stands before the results of tools, so a "
            "dialogue cannot continue; set model.chat_template"
        )
    return before, text[len(before) :]


def _linked(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return messages as templates take them that link each result to a call by its id.

    Only what follows the policy's turns counts, so calls that it wrote in another form, which have
    results all the same, are written as calls without a name.
    """
    dicts: list[dict[str, Any]] = []
    unanswered: list[str] = []
    for place, message in enumerate(messages):
        entry: dict[str, Any] = {"role": message.role, "content": message.raw}
        results = len(list(takewhile(lambda other: other.role == "tool", messages[place + 1 :])))
        if message.role == "assistant" and results:
            calls = [*(message.tool_calls or ()), *[ToolCall()] * results][:results]
            unanswered = _call_ids(calls, place)
            entry["content"] = ""
            entry["tool_calls"] = _call_dicts(list(zip(unanswered, calls, strict=True)))
        elif message.role == "tool" and unanswered:
            entry["tool_call_id"] = unanswered.pop(0)
        dicts.append(entry)
    return dicts


def _render(tokenizer: Any, messages: Sequence[Message], frame: ChatFrame) -> str:
    """Return messages as the template writes them, up to where the policy's turn begins."""
    if frame.calls_apart:
        dicts = _with_calls(tokenizer, messages, frame.tools)
    elif _links_calls(tokenizer):
        dicts = _linked(messages)
    else:
        dicts = [{"role": message.role, "content": message.raw} for message in messages]
    return _render_dicts(tokenizer, dicts, frame)


def _with_calls(
    tokenizer: Any, messages: Sequence[Message], tools: Sequence[object]
) -> list[dict[str, Any]]:
    """Return messages whose calls stand beside the contents, as the template takes them.

    A template that knows no calls gets them in the contents, in the form that `calls_of` reads.
    Thoughts that a client sent apart are apart here, too.
    """
    knows_calls = "tool_calls" in (template_of(tokenizer, has_tools=bool(tools)) or "")
    dicts: list[dict[str, Any]] = []
    unanswered: list[tuple[str, ToolCall]] = []
    for place, message in enumerate(messages):
        entry: dict[str, Any] = {"role": message.role, "content": message.raw}
        if message.thoughts and not any(message.thought_marks):
            entry |= {"content": message.content, "reasoning_content": message.thoughts}
        calls = message.tool_calls or ()
        if calls and knows_calls:
            unanswered = list(zip(_call_ids(calls, place), calls, strict=True))
            entry["tool_calls"] = _call_dicts(unanswered)
        elif calls:
            written = [_BLOCK.format(json.dumps(_function(call))) for call in calls]
            entry["content"] = "\n".join(filter(None, (entry["content"], *written)))
        elif message.role == "tool" and unanswered:
            entry["tool_call_id"], call = unanswered.pop(0)
            entry["name"] = call.name
        dicts.append(entry)
    return dicts


def _call_ids(calls: Sequence[ToolCall], place: int) -> list[str]:
    """Return the ids of the calls in the message at `place`, as templates want them."""
    return [
        call.id if _LINK.fullmatch(call.id) else f"call{place:02d}{number:03d}"[-9:]
        for number, call in enumerate(calls)
    ]


def _call_dicts(calls: Sequence[tuple[str, ToolCall]]) -> list[dict[str, Any]]:
    """Return calls, each with its id, as templates take them."""
    return [
        {"id": call_id, "type": "function", "function": _function(call)} for call_id, call in calls
    ]


def _function(call: ToolCall) -> dict[str, Any]:
    return {"name": call.name, "arguments": dict(call.arguments)}


def _links_calls(tokenizer: Any) -> bool:
    """Return whether the template wants calls and their results to be linked by ids."""
    return format_of(tokenizer.chat_template) == "mistral"


def _render_dicts(
    tokenizer: Any,
    dicts: Sequence[dict[str, Any]],
    frame: ChatFrame,
    *,
    add_generation_prompt: bool = True,
) -> str:
    if not tokenizer.chat_template:
        raise ConfigError(
            "the prompt is a chat, but the model has no chat template; set model.chat_template "
            "or take an instruct model"
        )
    messages = replaced_system(dicts, frame.system_prompt)
    has_system = bool(messages) and messages[0]["role"] == "system"
    if has_system and folds_system(tokenizer, frame.system_role, frame.arguments):
        messages = folded_system(messages)
    try:
        return write_chat(
            tokenizer,
            messages,
            tools=frame.tools,
            add_generation_prompt=add_generation_prompt,
            arguments=frame.arguments,
        )
    except TrialError as error:
        raise ConfigError(
            f"the model's chat template refuses the prompt: {error}; see model.chat_template, "
            "model.chat_template_args and model.system_role"
        ) from None
