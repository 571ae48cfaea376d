"""Show texts in messages, and read the prompts of tasks as texts."""

from grpo_core.words.prompts import (
    joined,
    last_text,
    normalized_prompt,
    normalized_text,
    prompt_text,
)
from grpo_core.words.texts import common_prefix, cut, fit, shorten

__all__ = [
    "common_prefix",
    "cut",
    "fit",
    "joined",
    "last_text",
    "normalized_prompt",
    "normalized_text",
    "prompt_text",
    "shorten",
]
