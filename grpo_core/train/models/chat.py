"""Turn messages into tokens, through the model's chat template or as raw text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jinja2 import TemplateError

from grpo_core.extract import is_text
from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.types import Message

_LAST_MESSAGE_MARK = "WHAT THE POLICY SAID 7c94f1"
"""Stands for the policy's last message while a template is rendered around it.

The tokens that the policy wrote are kept as they are and never tokenised again.
"""


@dataclass(frozen=True, slots=True)
class Frame:
    """Holds what a chat template is given besides the messages."""

    system_prompt: str | None = None
    """Replaces the system message of the prompt; None keeps it."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the template."""
    tools: Sequence[Mapping[str, Any]] = ()
    """JSON schemas of the functions that the policy may call."""


def encode(tokenizer: Any, prompt: str | tuple[Message, ...], frame: Frame) -> tuple[int, ...]:
    """Return the tokens of a prompt.

    Raw text is tokenised as it is; a chat goes through the model's template and ends where the
    assistant's turn begins.

    Raises:
        ConfigError: the prompt cannot be encoded, or the model has no usable chat template.
    """
    text = prompt if isinstance(prompt, str) else _render(tokenizer, prompt, frame)
    if not is_text(text):
        raise ConfigError(
            "a prompt holds half of a surrogate pair, which is not valid text and has no tokens; "
            f"remove it: {text!a:.200}"
        )
    return tuple(tokenizer(text, add_special_tokens=isinstance(prompt, str))["input_ids"])


def encode_reply(
    tokenizer: Any,
    prompt: str | tuple[Message, ...],
    messages: Sequence[Message],
    reply: Sequence[Message],
    frame: Frame,
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
        reply_text = "".join(message.content for message in reply)
    else:
        dialogue = (*prompt, *messages[:-1], Message("assistant", _LAST_MESSAGE_MARK), *reply)
        _, mark, reply_text = _render(tokenizer, dialogue, frame).rpartition(_LAST_MESSAGE_MARK)
        if not mark:
            raise ConfigError(
                "the model's chat template leaves out the assistant's message, so a dialogue "
                "cannot continue; set model.chat_template"
            )
        if end_id is not None:
            reply_text = reply_text.removeprefix(tokenizer.decode([end_id]))
    return list(tokenizer(reply_text, add_special_tokens=False)["input_ids"])


def _render(tokenizer: Any, messages: Sequence[Message], frame: Frame) -> str:
    if not tokenizer.chat_template:
        raise ConfigError(
            "the prompt is a chat, but the model has no chat template; set model.chat_template "
            "or take an instruct model"
        )
    dicts = [{"role": message.role, "content": message.content} for message in messages]
    if frame.system_prompt is not None:
        dicts = [
            {"role": "system", "content": frame.system_prompt},
            *dicts[int(dicts[0]["role"] == "system") :],
        ]
    try:
        return str(
            tokenizer.apply_chat_template(
                dicts,
                tools=list(frame.tools) or None,
                add_generation_prompt=True,
                tokenize=False,
                **frame.arguments,
            )
        )
    # TypeError: a template argument has the name of an argument of the tokenizer.
    except (TemplateError, TypeError) as error:
        raise ConfigError(
            f"the model's chat template refuses the prompt: {error}; see model.chat_template and "
            "model.chat_template_args"
        ) from None
