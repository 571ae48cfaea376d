"""Find the answer in each reference, and the text that stands around it in all of them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

_LONGEST_WORDS = 30
"""Characters of a reference of several words that is an answer without anything around it."""
_LONGEST = 200
"""The same for a reference that is one word, such as a path, or a list of items."""
_ITEMS = re.compile(r"[\w.-]+(?: \w+)?(?:(?:[,;] ?| [>|/<=-]+ )[\w.-]+(?: \w+)?)+")


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """The text around the answer in the environment's references, such as a pair of tags."""

    before: str = ""
    after: str = ""


def are_cut(answers: Sequence[str | None], texts: Sequence[str]) -> bool:
    """Return whether answers are the same beginning of different texts, cut before they differ."""
    return (
        len(set(answers)) == 1
        and len(set(texts)) > 2
        and all(text.startswith(answer or "") for text, answer in zip(texts, answers, strict=True))
    )


def is_answer(text: str) -> bool:
    """Return whether a text is as short as an answer, a list of items, or one word."""
    is_prose = " " in text and _ITEMS.fullmatch(text) is None
    return "\n" not in text and len(text) <= (_LONGEST_WORDS if is_prose else _LONGEST)


def with_leading_zeros(answer: str, text: str) -> str:
    """Return a whole number with the zeros that stand before it in a text."""
    zeros = re.search(r"(?<![\w.])0+\Z", text.rpartition(answer)[0], re.ASCII)
    return zeros[0] + answer if zeros and answer.isdecimal() else answer


def tagged_parts(texts: Sequence[str]) -> list[str] | None:
    """Return what stands in the last tag of each text; None unless all have the same around it."""
    parts = [re.fullmatch(r"(.*<(\w+)>)(.*)(</\2>.*)", text, re.DOTALL) for text in texts]
    frames = {(part[1], part[4]) for part in parts if part}
    return [part[3] for part in parts if part] if len(frames) == 1 and None not in parts else None


def json_parts(texts: Sequence[str]) -> list[str] | None:
    """Return the object or list of JSON in each text; None unless all have it in the same frame."""
    parts, frames = list[str](), set[tuple[str, str]]()
    for text in texts:
        start = re.search(r"[\[{]", text)
        if start is None:
            return None
        try:
            _, end = json.JSONDecoder().raw_decode(text, start.start())
        except (ValueError, RecursionError):
            return None
        parts.append(text[start.start() : end])
        frames.add((text[: start.start()], text[end:]))
    return parts if len(frames) == 1 else None


def form_of(before: str, after: str) -> AnswerForm:
    """Return the form of answers with this common beginning and end.

    Words that are cut belong to the answers; so does what they share inside of a tag.
    """
    tag = re.search(r"\A.*<(\w+)>(?=[^<>]*\Z)", before, re.DOTALL)
    if tag is not None and f"</{tag[1]}>" in after:
        return AnswerForm(tag[0], after[after.index(f"</{tag[1]}>") :])
    return without_cut_words(before, after)


def without_cut_words(before: str, after: str) -> AnswerForm:
    """Return a common beginning and end without the words in which they stop."""
    return AnswerForm(re.sub(r"[\w.+-]*\Z", "", before), re.sub(r"\A[\w.+-]*", "", after))


def whole_words(text: str) -> str:
    """Return `text` up to the beginning of its last word, which may be cut."""
    return text[: len(text) - len(re.split(r"\s", text)[-1])]
