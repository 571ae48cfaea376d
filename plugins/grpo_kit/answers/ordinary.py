"""Ordinary replies: right ones, wrong ones, and those of which a part is right."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from grpo_core.words import prompt_text
from grpo_core.words.hostile_texts import JUNK
from grpo_kit.dialogues.scripts import split_turns, with_last_turn
from grpo_kit.subject import Attempt, Subject

_NUMBERS = ("0", "-1", "13", "99", "100000", "9999999999")
"""What stands in the place of the numbers of an answer."""
_JSON = ("null", "7", '"x"', "[]", "{}", "[null]", '[[1], "a"]', '{"a": null}', '{"": {"": []}}')
"""What stands in the place of an object or a list."""
_PARTLY = 2
"""Replies to each task of which a part is right."""


def ordinary_attempts(subject: Subject) -> list[Attempt]:
    """Return ordinary replies to a small number of tasks, those to one task behind each other.

    Junk stands behind a right reply and before a wrong one, so that a verifier that keeps the last
    answer judges it otherwise when the attempts come backwards.
    """
    others = {id(task): text for task, text in subject.other_references}
    references = {id(task): text for task, text in subject.answered}
    first_junk, second_junk = list(JUNK.values())[1:3]
    attempts = list[Attempt]()
    for task in subject.tasks[: subject.small_count]:
        reference, other = references.get(id(task)), others.get(id(task))
        right = [] if reference is None else [f"{reference}\n", f" {reference}"]
        texts = [
            *([] if reference is None else [reference]),
            first_junk,
            *([] if other is None else [other]),
            *right,
            second_junk,
            *([] if reference is None else partly_right(reference, Random(task.key.index))),
            prompt_text(task),
        ]
        attempts += [(task, text) for text in texts]
    return attempts


def partly_right(reference: str, draws: Random) -> list[str]:
    """Return replies in which some items of a reference are other items of it.

    A verifier that looks at a sample of the items, or that takes the most frequent one, judges such
    replies by chance.
    """
    last = split_turns(reference)[-1]
    texts = dict.fromkeys(
        text
        for text in (*_exchanged(last, draws), *_counted_up(last), *_with_another_letter(last))
        if text != last
    )
    return [with_last_turn(reference, text) for text in list(texts)[: _PARTLY + 1]]


def _exchanged(text: str, draws: Random) -> Iterator[str]:
    """Yield `text` with one item in the place of another one."""
    try:
        value: Any = json.loads(text) if text[:1] in ("{", "[") else None
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict) and len(value) > 1:
        for _ in range(_PARTLY):
            source, target = draws.sample(list(value), 2)
            yield json.dumps({**value, target: value[source]})
        return
    words = list(re.finditer(r"\w+", text))
    kinds = [
        [word for word in words if word[0].isdigit()],
        [word for word in words if word[0].isalpha()],
    ]
    for kind in kinds:
        if len({word[0] for word in kind}) > 1:
            for _ in range(_PARTLY):
                source, target = draws.sample(kind, 2)
                yield text[: target.start()] + source[0] + text[target.end() :]


def _with_another_letter(text: str) -> Iterator[str]:
    """Yield `text` with another letter in the middle of its longest word."""
    words = re.findall(r"[^\W\d_]{3,}", text)
    if words:
        word = max(words, key=len)
        middle = len(word) // 2
        other = "a" if word[middle] != "a" else "b"
        yield text.replace(word, word[:middle] + other + word[middle + 1 :], 1)


def _counted_up(text: str) -> Iterator[str]:
    """Yield `text` with its numbers raised by 0, 1, 2 and so on, so that none is there twice."""
    numbers: Sequence[re.Match[str]] = list(re.finditer(r"\d{1,15}", text, re.ASCII))
    if len(numbers) > 1:
        place = iter(range(len(numbers)))
        yield re.sub(r"\d{1,15}", lambda found: str(int(found[0]) + next(place)), text)


def with_other_numbers(answer: str) -> Iterator[str]:
    """Yield an answer with other numbers, and other JSON where it is JSON."""
    if re.search(r"\d", answer, re.ASCII):
        for number in _NUMBERS:
            yield re.sub(r"\d+", number, answer, flags=re.ASCII)
        yield re.sub(r"\d", "9", answer, flags=re.ASCII)
        yield re.sub(r"\d", "0", answer, flags=re.ASCII)
    if answer[:1] in ("{", "["):
        yield from _JSON


def backwards(text: str) -> str:
    """Return a text with its items in the other order; the text where it has no two items."""
    value: Any = None
    if text[:1] == "[":
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(text)
    if isinstance(value, list):
        return json.dumps(value[::-1])
    words = re.findall(r"\w+", text)
    in_order = iter(words[::-1])
    return re.sub(r"\w+", lambda _: next(in_order), text)
