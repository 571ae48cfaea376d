"""Read what a model thought before its answer from the places in which servers send it apart.

* `reasoning_content`: DeepSeek, SGLang, llama.cpp, vLLM until 2025, and most proxies;
* `reasoning`: vLLM since then, OpenRouter, Ollama;
* `reasoning_details`: OpenRouter, as a list of parts, which may be encrypted;
* `thinking`, `thinking_blocks`: proxies of other APIs;
* parts of the type "thinking" or "reasoning" in `content`: Mistral.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FIELDS = ("reasoning_content", "reasoning", "thinking", "reasoning_details", "thinking_blocks")
"""The fields of a message that hold thoughts; several of them repeat the same ones."""
_PART_FIELDS = ("text", "thinking", "reasoning", "summary", "content")
_PART_TYPES = ("thinking", "reasoning", "thought")
_DEEPEST = 4
"""A text that is nested more deeply is not looked for."""


def read_thoughts(message: Mapping[str, Any]) -> tuple[str, str]:
    """Return the thoughts in a message and the name of the field they stand in; "" for none."""
    for field in FIELDS:
        if thoughts := _text_in(message.get(field)):
            return thoughts, field
    content = message.get("content")
    if isinstance(content, list):
        thoughts = "".join(_text_in(part) for part in content if is_thought(part))
        return thoughts, "content" if thoughts else ""
    return "", ""


def is_thought(part: object) -> bool:
    """Return whether a part of a message's content is one of the thoughts."""
    kind = part.get("type") if isinstance(part, dict) else None
    return isinstance(kind, str) and kind.startswith(_PART_TYPES)


def _text_in(value: object, depth: int = 0) -> str:
    """Return the text in a value: itself, or that of its parts one after the other."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and depth < _DEEPEST:
        return "".join(_text_in(part, depth + 1) for part in value)
    if isinstance(value, dict) and depth < _DEEPEST:
        texts = (_text_in(value.get(field), depth + 1) for field in _PART_FIELDS)
        return next(filter(None, texts), "")
    return ""
