"""Messages to tokens, through the model's chat template or as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jinja2 import TemplateError

from grpo_core.errors import ConfigError
from grpo_core.types import Message

_SPOKEN = "WHAT THE POLICY SAID 7c94f1"
"""Stands for the policy's last words while a template is rendered around them; what it wrote is never tokenised again."""


def encode(tokenizer: Any, prompt: str | tuple[Message, ...]) -> tuple[int, ...]:
    """Tokens of a prompt: raw text as it is, a chat through the model's template, ready for the assistant's turn."""
    if isinstance(prompt, str):
        return tuple(tokenizer(prompt)["input_ids"])
    return tuple(tokenizer(_render(tokenizer, prompt), add_special_tokens=False)["input_ids"])


def encode_reply(
    tokenizer: Any, prompt: str | tuple[Message, ...], said: Sequence[Message], turn: Sequence[Message], *, end_id: int | None
) -> list[int]:
    """What stands between the policy's last words and its next: the environment's `turn` as the template writes it.

    said: the messages since the prompt, the policy's last one included. end_id: the end token that the policy wrote itself; None if
    a stop string ended its turn, then the template's end token comes first. A raw prompt goes on with the bare contents.
    """
    if isinstance(prompt, str):
        rest = "".join(message.content for message in turn)
    else:
        text = _render(tokenizer, (*prompt, *said[:-1], Message("assistant", _SPOKEN), *turn))
        _, found, rest = text.rpartition(_SPOKEN)
        if not found:
            raise ConfigError(
                "the model's chat template leaves out what the assistant said, so a dialogue cannot go on; set model.chat_template"
            )
        if end_id is not None:
            rest = rest.removeprefix(tokenizer.decode([end_id]))
    ids: list[int] = tokenizer(rest, add_special_tokens=False)["input_ids"]
    return ids


def _render(tokenizer: Any, messages: Sequence[Message]) -> str:
    if not tokenizer.chat_template:
        raise ConfigError("the prompt is a chat, but the model has no chat template; set model.chat_template or take an instruct model")
    turns = [{"role": m.role, "content": m.content} for m in messages]
    try:
        text: str = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    except TemplateError as error:
        raise ConfigError(f"the model's chat template refuses the prompt: {error}; set model.chat_template") from None
    return text
