"""Texts close to a right answer that are not right: a number beside it, a letter, an item less."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

CUT = "the right answer without its last character"
EXCHANGED = "the right answer with two letters exchanged"
_INNER_DOT = re.compile(r"(?<=\w)\.(?=\w)")
"""A dot that ends no sentence."""
_SEPARATOR = re.compile(r"(\s*[,;|/<>]\s*|\s+(?:x|and|-|->|=>)\s+|\s+)")
"""What stands between the items of an answer."""
_ORDER = re.compile(
    r"\b(?:sort|ascending|descending|alphabetical(?:ly)?|chronological(?:ly)?|backwards?|reversed?|"
    r"(?:in|the) (?:same |that |this |which |reverse |opposite |right )?order\b(?! (?:to|that)\b)|"
    r"\w+est first|coordinates|\(x, ?y\)|rank(?:ed|ing)?\b|"
    r"from (?:small|large|low|high|short|long|old|new|left|right))",
    re.IGNORECASE,
)
"""What a prompt says that asks for the items of its answer in an order."""
_LOWEST = re.compile(r"lowest terms|reduced|simplif|irreducible|simplest", re.IGNORECASE)
"""What a prompt says that asks for a fraction in lowest terms."""
_NOT_LOWEST = re.compile(
    r"not (?:\w+ ){0,4}(?:reduced|simplif|lowest|simplest|irreducible)|unreduced", re.IGNORECASE
)
_ANY_ORDER = re.compile(
    r"(?:any|no|whatever|what) order|order (?:is|does) |"
    r"(?:no matter|regardless|whatever|irrespective|not matter)[\w ]{0,20} order",
    re.IGNORECASE,
)
_JSON_NUMBER = re.compile(r"(?<![\w.\"-])-?\d+(?:\.\d+)?(?![\w.\"])", re.ASCII)
_LETTERS_OF_A_WORD = 4
"""Different letters of a word; fewer may be a code whose order is free, such as steps."""
_FEW_WORDS = 4
"""Words of an answer that is no sentence."""
_LETTER = re.compile(r"[^\W\d_]")


def near_texts(answer: str, *, with_numbers: bool = True) -> Mapping[str, str]:
    """Return texts close to `answer` by their kind; none if only a unit or a mark would go.

    Args:
        answer: A right answer.
        with_numbers: Whether other numbers inside the answer make another answer of it, as they do
            not where a tolerance is declared.
    """
    texts = dict(_with_another_part(answer, with_numbers=with_numbers))
    if len(answer) > 2 and answer[-2:].isalnum():
        texts[CUT] = answer[:-1]
    if answer.isdigit() and answer[::-1] != answer and answer[-1] != "0":
        texts["the digits of the right number from behind"] = answer[::-1]
    return {kind: text for kind, text in texts.items() if text != answer}


def _with_another_part(answer: str, *, with_numbers: bool) -> Iterator[tuple[str, str]]:
    """Yield texts in which a number, a letter or an item of the answer is another one."""
    numbers = list(re.finditer(r"\d{1,15}", answer, re.ASCII))
    if with_numbers:
        yield from _with_other_numbers(answer, numbers)
    if numbers and answer.startswith(("{", "[")):
        yield "the right answer with NaN for its numbers", _JSON_NUMBER.sub("NaN", answer)
    if not re.fullmatch(r"[+-]?\d*\.\d+", answer) and _INNER_DOT.search(answer):
        changed = _INNER_DOT.sub(":", answer, count=1)
        yield "the right answer with another mark in place of a dot", changed
    yield from _with_other_letters(answer)
    yield from _with_fewer_items(answer)


def _with_other_numbers(answer: str, numbers: list[re.Match[str]]) -> Iterator[tuple[str, str]]:
    """Yield texts in which numbers of the answer are others."""
    if numbers and numbers[0][0] != answer.lstrip("+-"):
        for place, number in (("first", numbers[0]), ("last", numbers[-1])):
            for change, step in (("more", 1), ("less", -1)):
                other = str(abs(int(number[0]) + step)).zfill(len(number[0]))
                changed = answer[: number.start()] + other + answer[number.end() :]
                yield f"the right answer with 1 {change} in its {place} number", changed
        if len(numbers) > 2:
            middle = numbers[len(numbers) // 2]
            changed = answer[: middle.start()] + _raised(middle) + answer[middle.end() :]
            yield "the right answer with 1 more in a number in its middle", changed
        if len(numbers) > 1:  # by as much each, colours of a graph would still be right
            steps = itertools.cycle((1, 2, 4))
            changed = re.sub(r"\d{1,15}", lambda n: _raised(n, next(steps)), answer, flags=re.ASCII)
            yield "the right answer with more in each number", changed
    signed = re.search(r"(?<![\w.)-])-?\d+", answer, re.ASCII)
    if signed and signed[0] != answer and int(signed[0]):
        other = signed[0][1:] if signed[0][0] == "-" else f"-{signed[0]}"
        changed = answer[: signed.start()] + other + answer[signed.end() :]
        yield "the right answer with the sign of its first number changed", changed


def _with_other_letters(answer: str) -> Iterator[tuple[str, str]]:
    """Yield texts in which a letter of the answer is another one, or two are exchanged."""
    letters = list(_LETTER.finditer(answer))
    if len(answer) > 3 and letters and not answer.startswith(("{", "[")):
        letter = letters[len(letters) // 2]
        changed = answer[: letter.start()] + _next_letter(letter[0]) + answer[letter.end() :]
        yield "the right answer with another letter", changed
    words = answer.split(" ") if all(map(str.isalpha, answer.split(" "))) else []
    word = max(words, key=len, default="") if len(words) <= _FEW_WORDS else ""
    if len(set(word)) >= _LETTERS_OF_A_WORD:
        places = [at for at in range(1, len(word) - 1) if word[at] != word[at + 1]]
        if places:
            at = places[len(places) // 2]
            changed = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
            yield EXCHANGED, answer.replace(word, changed, 1)


def _raised(number: re.Match[str], step: int = 1) -> str:
    """Return a larger number, in as many digits."""
    return str(int(number[0]) + step).zfill(len(number[0]))


def _next_letter(letter: str) -> str:
    """Return another letter, in the same case where it has one."""
    other = "a" if letter.lower() != "a" else "b"
    return other.upper() if letter.isupper() else other


def asks_for_order(prompt: str) -> bool:
    """Return whether a prompt asks for the items of its answer in an order."""
    return bool(_ORDER.search(prompt)) and not _ANY_ORDER.search(prompt)


def not_as_asked(prompt: str, answer: str) -> Iterator[tuple[str, str]]:
    """Yield answers that are wrong because of what the prompt asks for: an order, lowest terms."""
    fraction = re.fullmatch(r"(-?\d{1,9})/(\d{1,9})", answer)
    if fraction and _LOWEST.search(prompt) and not _NOT_LOWEST.search(prompt):
        yield "the right fraction, not reduced", f"{2 * int(fraction[1])}/{2 * int(fraction[2])}"
    if not asks_for_order(prompt):
        return
    value, written = _listed(answer)
    last_two = [*value[:-2], *value[-2:][::-1]]
    for how, items in (("backwards", value[::-1]), ("the last two exchanged", last_two)):
        if len(value) > 1 and items != value:
            yield f"the right answer with its items {how}", written(items)


def _listed(answer: str) -> tuple[list[Any], Callable[[list[Any]], str]]:
    """Return the items of a list, and how such a list is written; no items if it is none."""
    if answer[:1] == "[":
        try:
            value: Any = json.loads(answer)
        except (ValueError, RecursionError):
            value = None
        return (value, json.dumps) if isinstance(value, list) else ([], str)
    inner = answer.strip()
    head, tail = ("(", ")") if inner[:1] == "(" and inner[-1:] == ")" else ("", "")
    parts = _SEPARATOR.split(inner[len(head) : len(inner) - len(tail)])
    separators = parts[1::2]
    if "\n" in answer or len(set(separators)) != 1 or (len(parts) < 5 and not head):
        return [], str
    return parts[::2], lambda items: head + separators[0].join(map(str, items)) + tail


def _with_fewer_items(answer: str) -> Iterator[tuple[str, str]]:
    """Yield a list without its last and without its first item, and an object without a key."""
    if answer[:1] in ("{", "["):
        yield from _smaller_json(answer)
        return
    parts = _SEPARATOR.split(answer.strip())  # items and separators in turn
    if len(parts) >= 5 and len(set(parts[1::2])) == 1 and "\n" not in answer:
        yield "the right answer without its last item", "".join(parts[:-2])
        yield "the right answer without its first item", "".join(parts[2:])


def _smaller_json(answer: str) -> Iterator[tuple[str, str]]:
    try:
        value: Any = json.loads(answer)
    except (ValueError, RecursionError):
        return
    if isinstance(value, list) and len(value) > 1:
        yield "the right answer without its last item", json.dumps(value[:-1])
        yield "the right answer without its first item", json.dumps(value[1:])
    if isinstance(value, dict) and len(value) > 1:
        for place, key in (("first", next(iter(value))), ("last", list(value)[-1])):
            rest = {name: item for name, item in value.items() if name != key}
            yield f"the right answer without its {place} key", json.dumps(rest)
