"""Find what a prompt is about: the words that other prompts of the environment do not have."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from grpo_core import Task
from grpo_core.words import prompt_text
from grpo_kit.subject import Subject

_COMMON = 0.6
"""A word of a larger share of the prompts belongs to their template."""
_MOST_NAMES = 4


def own_words(subject: Subject, task: Task[Any]) -> list[str]:
    """Return the words of a prompt, in their order, that most other prompts do not have."""
    prompts = [set(re.findall(r"\w+", prompt_text(other))) for other in subject.tasks]
    counts = Counter(word for prompt in prompts for word in prompt)
    words = dict.fromkeys(re.findall(r"\w+", prompt_text(task)))
    return [word for word in words if counts[word] < _COMMON * len(prompts)]


def names_in(subject: Subject, task: Task[Any]) -> list[str]:
    """Return a few words of a prompt that may be names: quoted ones, and those of its own."""
    quoted = re.findall(r"""['"`]([^'"`\n]{1,30})['"`]""", prompt_text(task))
    own = [word for word in own_words(subject, task) if word.isalpha() and len(word) > 2]
    return list(dict.fromkeys([*quoted, *own]))[:_MOST_NAMES]


def listed_in(text: str) -> list[str]:
    """Return the words of lists in a text, as in "the materials are steel, brass and glass"."""
    lists = re.findall(r"\w+(?:, \w+)*,? (?:and|or) \w+", text)
    words = [word for found in lists for word in re.findall(r"\w+", found)]
    return [word for word in dict.fromkeys(words) if word not in ("and", "or")][:_MOST_NAMES]


def numbers_in(task: Task[Any]) -> list[int]:
    """Return a few whole numbers of a prompt, as they stand in it."""
    numbers = re.findall(r"(?<![\w.-])\d{1,9}(?![\w.]*\d)", prompt_text(task), re.ASCII)
    return list(dict.fromkeys(map(int, numbers)))[:_MOST_NAMES]
