"""Tell which held-out prompts are trained on, whatever their case, spacing and punctuation."""

from __future__ import annotations

import re
from typing import Any

from grpo_core.protocol.types import Message, Task
from grpo_core.report.floors import prompt_text


def normalized_prompt(task: Task[Any]) -> str:
    """Return the prompt without differences of case, spacing and final punctuation."""
    return normalized_text(prompt_text(task))


def normalized_text(text: str) -> str:
    """Return a text without differences of case, spacing and final punctuation."""
    return " ".join(re.findall(r"\w+|[^\w\s]", text.casefold())).rstrip(" .!?")


def joined(prompt: str | tuple[Message, ...]) -> str:
    """Return a prompt that belongs to no task as one text, as `prompt_text` does."""
    return prompt if isinstance(prompt, str) else "\n".join(message.content for message in prompt)
