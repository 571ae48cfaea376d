"""Write the Python code that loads the trained weights of a run, for its model card."""

from __future__ import annotations

import json
from typing import Any

from grpo_core.runs.lines import JsonObject

_PROMPT_CHARS = 4_000
"""The most characters of a prompt that the code repeats."""
_NEW_TOKENS = 256
"""Tokens of the answer where the run does not say how many."""


def loading_code(
    config: JsonObject,
    cards: JsonObject,
    *,
    location: str,
    masked: bool,
    adapted: tuple[str, str | None] | None,
) -> str:
    """Return code that loads the weights and, unless they fill gaps, answers a prompt of training.

    Args:
        config: the settings of the run.
        cards: the descriptions of its environments, by their names.
        location: a folder, or a repository of the hub.
        masked: whether the model fills gaps instead of continuing a text.
        adapted: name and revision of the base model of an adapter; None for a whole model.
    """
    model_class = "AutoModelForMaskedLM" if masked else "AutoModelForCausalLM"
    own_code = ", trust_remote_code=True" if config["model"].get("trust_remote_code") else ""
    lines = [f"from transformers import {model_class}, AutoTokenizer", ""]
    lines.append(f"location = {json.dumps(location)}")
    if adapted is None:
        lines.append(f"model = {model_class}.from_pretrained(location{own_code})")
    else:
        name, revision = adapted
        pinned = f", revision={json.dumps(revision)}" if revision else ""
        lines = ["from peft import PeftModel", *lines]
        lines.append(f"base = {model_class}.from_pretrained({json.dumps(name)}{pinned}{own_code})")
        lines.append("model = PeftModel.from_pretrained(base, location)")
    lines.append(f"tokenizer = AutoTokenizer.from_pretrained(location{own_code})")
    if not masked:
        lines += ["", *_answering(config, _prompt(cards))]
    return "\n".join(lines) + "\n"


def _answering(config: JsonObject, prompt: str | list[dict[str, str]]) -> list[str]:
    """Return lines that answer a prompt as the run sampled its last ones."""
    if isinstance(prompt, str):
        lines = [f'inputs = tokenizer({json.dumps(prompt)}, return_tensors="pt")']
    else:
        lines = [
            "messages = [",
            *(f"    {json.dumps(message)}," for message in prompt),
            "]",
            "inputs = tokenizer.apply_chat_template(",
            '    messages, add_generation_prompt=True, return_dict=True, return_tensors="pt"',
            ")",
        ]
    new_tokens = config["sampling"].get("max_new_tokens") or _NEW_TOKENS
    return [
        *lines,
        f"tokens = model.generate(**inputs, max_new_tokens={new_tokens})",
        'print(tokenizer.decode(tokens[0, inputs["input_ids"].shape[1] :]))',
    ]


def _prompt(cards: JsonObject) -> str | list[dict[str, str]]:
    """Return the first prompt that the cards have; a short message if none can be repeated."""
    for card in cards.values():
        prompt: Any = card.get("prompt") if isinstance(card, dict) else None
        if not prompt or len(json.dumps(prompt)) > _PROMPT_CHARS:
            continue
        if isinstance(prompt, str):
            return prompt
        messages = [
            {"role": message["role"], "content": message["content"]}
            for message in prompt
            if isinstance(message, dict)
            and isinstance(message.get("role"), str)
            and isinstance(message.get("content"), str)
        ]
        if messages:
            return messages
    return [{"role": "user", "content": "Hello"}]
