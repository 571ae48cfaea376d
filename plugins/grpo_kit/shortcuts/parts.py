"""Strategies that answer with a part of the prompt, or with a count of its parts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from grpo_kit.shortcuts.asked import SeenPrompt
from grpo_kit.shortcuts.shape import ReferenceShape
from grpo_kit.shortcuts.strategy import Answer, Strategy

Values = Callable[[SeenPrompt], Sequence[str]]
"""Returns values of one kind in a prompt."""


def part_strategies(shape: ReferenceShape) -> Iterator[Strategy]:
    """Yield the parts and counts of the prompt in the form of an answer, and echoes."""
    yield Strategy("the whole prompt, echoed", "prompt", lambda asked: asked.text)
    yield Strategy("the question, echoed", "prompt", lambda asked: asked.question)
    if shape.is_code:
        yield Strategy(
            "the last block of the prompt", "prompt", partial(_formed, shape, _last_block)
        )
        return
    for name, read in {**_QUESTIONS, **_places(), **_CHOSEN, **_counts()}.items():
        yield Strategy(name, "prompt", partial(_formed, shape, read))


def _formed(shape: ReferenceShape, read: Answer, asked: SeenPrompt) -> str | None:
    """Return what is read from a prompt in the form of an answer; None if nothing is."""
    text = read(asked)
    return None if text is None else shape.reply(text)


def _places() -> dict[str, Answer]:
    """Return what reads the first and last values of each kind."""
    kinds: dict[str, tuple[Values, Mapping[str, int]]] = {
        "number": (lambda asked: asked.numbers, {"first": 0, "second": 1, "third": 2, "last": -1}),
        "number but one": (lambda asked: asked.numbers, {"last": -2}),
        "word": (lambda asked: asked.words, {"first": 0, "last": -1}),
        "line": (lambda asked: asked.lines, {"first": 0, "second": 1, "last": -1}),
        "quotation": (lambda asked: asked.quoted, {"first": 0, "second": 1, "last": -1}),
        "alternative": (lambda asked: asked.alternatives or (), {"first": 0, "last": -1}),
        "item of the list": (lambda asked: asked.items, {"first": 0, "last": -1}),
        "choice's label": (_labels, {"first": 0, "last": -1}),
        "choice": (lambda asked: [text for _, text in asked.choices], {"first": 0, "last": -1}),
        "block between fences": (lambda asked: asked.blocks, {"first": 0, "last": -1}),
        "capitalised word": (_names, {"first": 0, "last": -1}),
        "character": (lambda asked: asked.question.strip(), {"first": 0, "last": -1}),
    }
    return {
        f"the {place} {kind} of the prompt": partial(_value_at, values, index)
        for kind, (values, places) in kinds.items()
        for place, index in places.items()
    }


def _value_at(values: Values, place: int, asked: SeenPrompt) -> str | None:
    """Return the value at a place, counted from the back if it is negative."""
    known = values(asked)
    return known[place] if -len(known) <= place < len(known) else None


def _last_block(asked: SeenPrompt) -> str | None:
    return asked.blocks[-1] if asked.blocks else None


def _labels(asked: SeenPrompt) -> list[str]:
    return [label for label, _ in asked.choices]


def _names(asked: SeenPrompt) -> list[str]:
    """Return the words with a capital letter, but for the first of each sentence."""
    return re.findall(r"(?<=[\w,;] )[A-Z][\w'-]*", asked.question)


def _best(values: Values, rank: Callable[[str], float], asked: SeenPrompt) -> str | None:
    """Return the first of the values with the highest rank."""
    return max(values(asked), key=rank, default=None)


def _longest_label(asked: SeenPrompt) -> str | None:
    """Return the label of the longest choice, which is often the one with all conditions."""
    return max(asked.choices, key=lambda choice: len(choice[1]), default=(None, ""))[0]


def _behind(mark: str, asked: SeenPrompt) -> str | None:
    """Return what stands behind the last such mark of the question, without the end's marks."""
    _, found, rest = asked.question.rpartition(mark)
    return rest.strip().rstrip("?.!") if found and rest.strip() else None


_QUESTIONS: Mapping[str, Answer] = {
    "the question": lambda asked: asked.question,
    "the question without its last mark": lambda asked: asked.question.strip().rstrip("?.!"),
    "the question backwards": lambda asked: asked.question[::-1],
    "what follows the last colon": partial(_behind, ":"),
}
_CHOSEN: Mapping[str, Answer] = {
    "the largest number of the prompt": partial(_best, lambda asked: asked.numbers, float),
    "the smallest number of the prompt": partial(
        _best, lambda asked: asked.numbers, lambda text: -float(text)
    ),
    "the longest word of the prompt": partial(_best, lambda asked: asked.words, len),
    "the longest item of the list": partial(_best, lambda asked: asked.items, len),
    "the shortest item of the list": partial(
        _best, lambda asked: asked.items, lambda text: -len(text)
    ),
    "the label of the longest choice": _longest_label,
    "all numbers of the prompt": lambda asked: " ".join(asked.numbers) or None,
    "all quotations of the prompt": lambda asked: " ".join(asked.quoted) or None,
    "all items of the list": lambda asked: ", ".join(asked.items) or None,
    "the list backwards": lambda asked: ", ".join(asked.items[::-1]) or None,
    "the first quotation backwards": lambda asked: asked.quoted[0][::-1] if asked.quoted else None,
    "the most frequent word of the prompt": lambda asked: next(
        (word for word, _ in Counter(asked.words).most_common(1)), None
    ),
}


def _counts() -> dict[str, Answer]:
    """Return what counts the parts of a prompt."""
    kinds: dict[str, Values] = {
        "words of the prompt": lambda asked: asked.words,
        "characters of the prompt": lambda asked: asked.question,
        "lines of the prompt": lambda asked: asked.lines,
        "numbers of the prompt": lambda asked: asked.numbers,
        "items of the list": lambda asked: asked.items,
        "sentences of the prompt": lambda asked: re.findall(r"[.?!](?=\s|$)", asked.question),
        "characters of the first quotation": lambda asked: "".join(asked.quoted[:1]),
        "characters of the last quotation": lambda asked: "".join(asked.quoted[-1:]),
        "words of the last quotation": lambda asked: " ".join(asked.quoted[-1:]).split(),
    }
    return {f"the count of {kind}": partial(_count, values) for kind, values in kinds.items()}


def _count(values: Values, asked: SeenPrompt) -> str | None:
    """Return the number of values; None where there are none."""
    number = len(values(asked))
    return str(number) if number else None
