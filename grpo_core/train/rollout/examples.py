"""Read examples for a warm start from a JSONL file: prompts, and the answers to learn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_core.config.user_files import user_values
from grpo_core.protocol.endpoint import CompletionRequest
from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.types import Message

FORMS = (
    '{"prompt": ..., "completion": ...}, each text or a list of messages, or {"messages": [...]} '
    "that end with the assistant's"
)
"""The two forms of a line, in words for messages."""


@dataclass(frozen=True, slots=True)
class Example:
    """Holds a prompt and the answer to learn."""

    prompt: str | tuple[Message, ...]
    answer: str
    request: CompletionRequest | None = None
    """The request of an agent that has this prompt; None: it is of an environment or a file."""


def read_examples(path: Path) -> list[Example]:
    """Return the examples of all lines of a JSONL file.

    Raises:
        ConfigError: a line, whose number is given, has neither of the two forms; or there is none.
    """
    examples = [_example(row, where) for where, row in user_values(path, holds="examples")]
    if not examples:
        raise ConfigError(f"{path} holds no example; each line should be {FORMS}")
    return examples


def _example(row: Any, where: str) -> Example:
    if not isinstance(row, Mapping):
        raise ConfigError(f"{where} is {type(row).__name__}; it should be {FORMS}")
    if "messages" in row:
        *prompt, last = _messages(row["messages"], where)
        if last.role != "assistant" or not prompt:
            raise ConfigError(
                f"{where}: messages have to end with the assistant's, behind at least one other; "
                f"the last is {last.role!r}'s"
            )
        return Example(tuple(prompt), last.content)
    if "prompt" not in row or "completion" not in row:
        raise ConfigError(
            f"{where} has {', '.join(sorted(row)) or 'no keys'}; it should be {FORMS}"
        )
    prompt, answer = row["prompt"], row["completion"]
    if not isinstance(answer, str):
        messages = _messages(answer, where)
        if [message.role for message in messages] != ["assistant"]:
            raise ConfigError(
                f"{where}: a completion of messages has to be one message of the assistant"
            )
        answer = messages[0].content
    return Example(prompt if isinstance(prompt, str) else tuple(_messages(prompt, where)), answer)


def _messages(value: Any, where: str) -> list[Message]:
    if not isinstance(value, list) or not value:
        raise ConfigError(
            f"{where}: messages should be a list that is not empty; found {value!r:.80}"
        )
    try:
        return [Message(message["role"], message["content"]) for message in value]
    except (TypeError, KeyError):
        raise ConfigError(
            f'{where}: a message should be {{"role": ..., "content": ...}}; found {value!r:.80}'
        ) from None
