"""Read prompts as texts, and compare them whatever their case, spacing and punctuation."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from grpo_core.protocol.types import Message, Task


def joined(prompt: str | Sequence[Message]) -> str:
    """Return a prompt or other messages, which may belong to no task, as one text."""
    return prompt if isinstance(prompt, str) else "\n".join(message.content for message in prompt)


def prompt_text(task: Task[Any]) -> str:
    """Return the prompt of `task` as one text."""
    return joined(task.prompt)


def last_text(task: Task[Any]) -> str:
    """Return the prompt of `task`, or its last message, which tells it from others."""
    return task.prompt if isinstance(task.prompt, str) else task.prompt[-1].content


def normalized_prompt(task: Task[Any]) -> str:
    """Return the prompt without differences of case, spacing and final punctuation."""
    return normalized_text(prompt_text(task))


def normalized_text(text: str) -> str:
    """Return a text without differences of case, spacing and final punctuation."""
    return " ".join(re.findall(r"\w+|[^\w\s]", text.casefold())).rstrip(" .!?")
