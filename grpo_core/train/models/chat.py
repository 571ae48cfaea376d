"""Messages to tokens, through the model's chat template or as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jinja2 import TemplateError

from grpo_core.extract import is_text
from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.types import Message

_SPOKEN = "WHAT THE POLICY SAID 7c94f1"
"""Stands for the policy's last words while a template is rendered around them; what it wrote is never tokenised again."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What a template is given beside the messages. system_prompt: takes the place of the prompt's own; arguments: of the template;
    tools: JSON schemas of the functions that the policy may call."""

    system_prompt: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    tools: Sequence[Mapping[str, Any]] = ()


def encode(tokenizer: Any, prompt: str | tuple[Message, ...], frame: Frame) -> tuple[int, ...]:
    """Tokens of a prompt: raw text as it is, a chat through the model's template, ready for the assistant's turn."""
    text = prompt if isinstance(prompt, str) else _render(tokenizer, prompt, frame)
    if not is_text(text):
        raise ConfigError(
            f"a prompt holds half of a surrogate pair, which is no text and has no tokens; remove it there: {text!a:.200}"
        )
    return tuple(tokenizer(text, add_special_tokens=isinstance(prompt, str))["input_ids"])


def encode_reply(
    tokenizer: Any,
    prompt: str | tuple[Message, ...],
    said: Sequence[Message],
    turn: Sequence[Message],
    frame: Frame,
    *,
    end_id: int | None,
) -> list[int]:
    """What stands between the policy's last words and its next: the environment's `turn` as the template writes it.

    said: the messages since the prompt, the policy's last one included. end_id: the end token that the policy wrote itself; None if
    a stop string ended its turn, then the template's end token comes first. A raw prompt goes on with the bare contents.
    """
    if isinstance(prompt, str):
        rest = "".join(message.content for message in turn)
    else:
        text = _render(
            tokenizer, (*prompt, *said[:-1], Message("assistant", _SPOKEN), *turn), frame
        )
        _, found, rest = text.rpartition(_SPOKEN)
        if not found:
            raise ConfigError(
                "the model's chat template leaves out what the assistant said, so a dialogue cannot go on; set model.chat_template"
            )
        if end_id is not None:
            rest = rest.removeprefix(tokenizer.decode([end_id]))
    ids: list[int] = tokenizer(rest, add_special_tokens=False)["input_ids"]
    return ids


def _render(tokenizer: Any, messages: Sequence[Message], frame: Frame) -> str:
    if not tokenizer.chat_template:
        raise ConfigError(
            "the prompt is a chat, but the model has no chat template; set model.chat_template or take an instruct model"
        )
    turns = [{"role": m.role, "content": m.content} for m in messages]
    if frame.system_prompt is not None:
        turns = [
            {"role": "system", "content": frame.system_prompt},
            *turns[int(turns[0]["role"] == "system") :],
        ]
    try:
        text: str = tokenizer.apply_chat_template(
            turns,
            tools=list(frame.tools) or None,
            add_generation_prompt=True,
            tokenize=False,
            **frame.arguments,
        )
    except (
        TemplateError,
        TypeError,
    ) as error:  # TypeError: an argument that the tokenizer itself takes
        raise ConfigError(
            f"the model's chat template refuses the prompt: {error}; see model.chat_template and _args"
        ) from None
    return text
