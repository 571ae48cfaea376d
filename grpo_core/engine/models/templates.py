"""Write chats by a model's template, in a process that always ends, and find what ends a turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import transformers

from grpo_core.config.chat_templates import FOR_TOOLS, TEMPLATES, TURN_MARKS
from grpo_core.config.modelcache import ALIASES
from grpo_core.engine.models import guarded
from grpo_core.engine.models.guarded import OverrunError, TrialError
from grpo_core.engine.models.source import ModelSource
from grpo_core.protocol.errors import ConfigError

_OWN_VARIABLES = (
    *("messages", "tools", "documents", "add_generation_prompt"),
    *("conversation", "tokenize", "chat_template"),
)
"""What a template is given in any case, and arguments that transformers takes for itself."""
_REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names of the thoughts in a message; templates read the first, some the second."""
MAX_TOKEN = 2**31
"""More than any number of a token; some configs have others, such as -1 for none."""
_MARK = "grpo-end-of-turn-mark"

_ends: WeakKeyDictionary[Any, tuple[object, int | None]] = WeakKeyDictionary()


def set_template(tokenizer: Any, chosen: str | None, source: ModelSource) -> None:
    """Give a tokenizer the chat template that the config names, or that an alias brings.

    With one for tools, chats without tools are written as before, to the byte.

    Args:
        tokenizer: the tokenizer.
        chosen: the setting `model.chat_template`.
        source: where the model is.

    Raises:
        ConfigError: the tokenizer does not know the marks of the template, or the template writes
            the same whatever the messages are.
    """
    alias = ALIASES.get(source.name)
    name = chosen or (alias.chat_template if alias is not None else None)
    if name is None:
        return
    if name not in TEMPLATES:
        tokenizer.chat_template = name
        _refuse_constant(tokenizer)
        return
    vocabulary = tokenizer.get_vocab()
    if missing := [mark for mark in TURN_MARKS[name] if mark not in vocabulary]:
        raise ConfigError(
            f"model.chat_template={name} is for models with its tokens, and the tokenizer of "
            f"{source.name!r} has no token {missing[0]}; set model.chat_template to a template "
            "of the model's own form"
        )
    own = template_of(tokenizer, has_tools=False) if name in FOR_TOOLS else None
    tokenizer.chat_template = (
        {"default": own, "tool_use": TEMPLATES[name]} if own is not None else TEMPLATES[name]
    )


def _refuse_constant(tokenizer: Any) -> None:
    """Raise ConfigError if the template writes two different chats as the same text."""
    chats = [[{"role": "user", "content": f"{_MARK} {number}"}] for number in (1, 2)]
    try:
        first, second = (write_chat(tokenizer, chat, add_generation_prompt=True) for chat in chats)
    except TrialError:  # it may take other chats; a prompt that it refuses is reported with why
        return
    if first == second:
        raise ConfigError(
            f"model.chat_template writes the same text whatever the messages are, {first!r:.80}; "
            "take a Jinja template that goes through `messages`, a file with one, or a name: "
            f"{', '.join(TEMPLATES)}"
        )


def template_of(tokenizer: Any, *, has_tools: bool) -> str | None:
    """Return the template that a tokenizer takes for a chat with or without tools, if it has one.

    Of several it is the one that transformers takes.
    """
    template = tokenizer.chat_template
    if isinstance(template, Mapping):
        own = template.get("default")
        template = template.get("tool_use", own) if has_tools else own
    return template if isinstance(template, str) else None


def write_chat(
    tokenizer: Any,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    add_generation_prompt: bool = False,
    arguments: Mapping[str, Any] | None = None,
) -> str:
    """Return the text of a chat, as `apply_chat_template` of transformers would give it.

    Args:
        tokenizer: has the template, and the special tokens that it writes.
        messages: the chat.
        tools: JSON schemas of functions.
        add_generation_prompt: whether the text ends where the assistant's turn begins.
        arguments: further variables of the template.

    Raises:
        TrialError: there is no template for it, or the template fails.
    """
    arguments = arguments or {}
    if reserved := [name for name in _OWN_VARIABLES if name in arguments]:
        raise TrialError(f"its argument {reserved[0]} is set already")
    try:
        template = tokenizer.get_chat_template(None, list(tools) or None)
    except ValueError as error:
        raise TrialError(str(error)) from None
    if not isinstance(template, str):
        raise TrialError(f"it is not a text but a {type(template).__name__}")
    return guarded.render(
        template,
        {
            **tokenizer.special_tokens_map,
            **arguments,
            "messages": [_plain(message) for message in messages],
            "tools": list(tools) or None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        },
    )


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message without empty fields, its thoughts under the names that templates read."""
    fields = {name: value for name, value in message.items() if value is not None}
    thoughts = next((fields[name] for name in _REASONING if name in fields), None)
    if thoughts is None:
        return fields
    return {"thinking": thoughts, **fields, "reasoning_content": thoughts}


def end_token_ids(model: Any, tokenizer: transformers.PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Return every token that ends an answer.

    They come from the generation config, the config, the tokenizer, and what the chat template puts
    after a turn. One source is not enough: chat models often name the end of the document in one
    place and the end of the turn in another, and a policy that is not stopped at its own end token
    babbles to the length limit.

    Raises:
        ConfigError: something else than a token is named.
    """
    candidates: list[Any] = []
    for config in (
        getattr(model, "generation_config", None),
        model.config.get_text_config(decoder=True),
    ):
        eos = getattr(config, "eos_token_id", None)
        candidates += eos if isinstance(eos, (list, tuple)) else [eos]
    candidates += [tokenizer.eos_token_id, end_of_turn_id(tokenizer)]
    ids = [token for token in candidates if token is not None]
    for token in ids:
        if not isinstance(token, int) or isinstance(token, bool):
            raise ConfigError(
                f"the model names {token!r:.80} as an end token, which is not the number of one; "
                "correct eos_token_id in its config.json and generation_config.json"
            )
    return tuple(dict.fromkeys(token for token in ids if 0 <= token < MAX_TOKEN))


def end_of_turn_id(tokenizer: transformers.PreTrainedTokenizerBase) -> int | None:
    """Return the special token that the chat template writes after an assistant's message.

    It is found by rendering a dialogue with a marked message. None if there is no template or no
    such token.

    Raises:
        ConfigError: the template takes too long, or too much memory.
    """
    state = (tokenizer.chat_template, len(tokenizer))
    if tokenizer not in _ends or _ends[tokenizer][0] != state:
        _ends[tokenizer] = (state, _find_end_of_turn(tokenizer))
    return _ends[tokenizer][1]


def _find_end_of_turn(tokenizer: transformers.PreTrainedTokenizerBase) -> int | None:
    if not tokenizer.chat_template:
        return None
    dialogue = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _MARK}]
    try:
        rendered = write_chat(tokenizer, dialogue)
    except OverrunError as error:
        raise ConfigError(
            f"the model's chat template cannot be used: {error}; set model.chat_template"
        ) from error
    except TrialError:  # some refuse some dialogues, or need tools; the other sources still count
        return None
    after = rendered.rpartition(_MARK)[2].lstrip()
    matches = [
        (len(token.content), index)
        for index, token in tokenizer.added_tokens_decoder.items()
        if token.special and after.startswith(token.content)
    ]
    # A longer token may start with a shorter one.
    return max(matches)[1] if matches else None
