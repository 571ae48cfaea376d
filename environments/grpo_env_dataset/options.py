"""Read the options of multiple-choice rows, and which of them an answer names."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from typing import Any

from grpo_core.extract import parse_json
from grpo_env_dataset.answers import is_same_text
from grpo_env_dataset.rows import Row

FIELDS = ("choices", "options", "endings")
"""The fields that hold the options in most data sets."""


def options_of(row: Row) -> dict[str, str]:
    """Return the texts of a row's options by their letters; none if the row has none.

    A field holds a list of texts, an object of letters and texts, or an object with the lists
    `label` and `text`; in a CSV file such a value as JSON, or texts with | between them. Without
    such a field, columns named A, B, C, ... hold them, or option_a, option_b, ...
    """
    for field in FIELDS:
        value = _from_text(row.get(field))
        if isinstance(value, list):
            return _labelled(string.ascii_uppercase, value)
        if isinstance(value, Mapping):
            labels, texts = value.get("label"), value.get("text")
            if isinstance(labels, list) and isinstance(texts, list):
                return _labelled(labels, texts)
            return {str(label): str(text) for label, text in value.items()}
    return _columns(row)


def _from_text(value: Any) -> Any:
    """Return what a text in a CSV file stands for, and any other value unchanged."""
    if not isinstance(value, str):
        return value
    parsed = parse_json(value.strip())
    if parsed is not None and isinstance(parsed.value, list | dict):
        return parsed.value
    texts = [text.strip() for text in value.split("|")]
    return texts if len(texts) > 1 else value


def _columns(row: Row) -> dict[str, str]:
    """Return options that have a column each."""
    for name in ("{}", "option_{}", "choice_{}", "option {}", "choice {}", "option{}"):
        found = dict[str, str]()
        for letter in string.ascii_uppercase:
            key = next((key for key in row if key.casefold() == name.format(letter.casefold())), "")
            if not key or row[key] in (None, ""):
                break
            found[letter] = str(row[key])
        if len(found) > 1:
            return found
    return {}


def _labelled(labels: Any, texts: list[Any]) -> dict[str, str]:
    return {str(label): str(text) for label, text in zip(labels, texts, strict=False)}


def listed(options: Mapping[str, str]) -> str:
    """Return options as lines of a prompt."""
    return "\n".join(f"{letter}) {text}" for letter, text in options.items())


def letter_of(text: str, options: Mapping[str, str]) -> str | None:
    """Return the letter of the option that a row's answer names; None if it names none.

    The answer is a letter, the text of an option, or the number of one, counted from 0 as in the
    labels of published data sets.
    """
    if letter := read_choice(text, options):
        return letter
    number = int(text) if re.fullmatch(r"\d{1,2}", text, re.ASCII) else len(options)
    return list(options)[number] if number < len(options) else None


def read_choice(answer: str, options: Mapping[str, str]) -> str | None:
    """Return the letter that an answer names: `B`, `(b)`, `B.`, `B) its text`, or the text alone.

    None if it names none, or texts of two options are the same and it gives only the text.
    """
    answer = answer.strip()
    by_letter = {letter.casefold(): letter for letter in options}
    match = re.fullmatch(r"\(?(\w+)[).:]?(?:\s+(.+))?", answer, re.DOTALL)
    letter = by_letter.get(match[1].casefold()) if match else None
    if match and letter and (match[2] is None or is_same_text(match[2], options[letter])):
        return letter
    named = [letter for letter, text in options.items() if is_same_text(answer, text)]
    return named[0] if len(named) == 1 else None
