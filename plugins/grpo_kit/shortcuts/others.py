"""Strategies that answer with references of other tasks: frequent ones, of all or of one kind.

They are learned from training tasks other than those on which they are measured.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from zlib import crc32

from grpo_kit.shortcuts.asked import SeenPrompt
from grpo_kit.shortcuts.constants import constantly
from grpo_kit.shortcuts.shape import ReferenceShape
from grpo_kit.shortcuts.strategy import Strategy

_FREQUENT = 8
"""How many of the most frequent references are tried."""
_BINS = 8
"""The parts of equal weight into which a number in prompts is divided."""
_LONGEST_LIST = 2000
"""Characters of a list of all answers."""
_LEAST_SEEN = 3
"""With fewer prompts of a kind its most frequent reference is memory, and no rule."""
Feature = Callable[[SeenPrompt], Hashable]


def other_strategies(
    shape: ReferenceShape, learned: Sequence[tuple[SeenPrompt, str]]
) -> Iterator[Strategy]:
    """Yield the strategies that know references of other tasks.

    Args:
        shape: The shape of the references.
        learned: What other tasks ask, each with its reference.
    """
    if not learned:
        return
    frequent = Counter(reference for _, reference in learned).most_common(_FREQUENT)
    for number, (reference, _) in enumerate(frequent, 1):
        name = "the most frequent reference" if number == 1 else f"frequent reference {number}"
        yield Strategy(name, "others", constantly(reference))
    answers = list(dict.fromkeys(shape.answers))
    for name, mark in (("a space", " "), ("a comma", ", "), ("a new line", "\n")):
        listed = mark.join(answers)[:_LONGEST_LIST]
        yield Strategy(
            f"all answers seen, with {name} between them", "others", constantly(shape.reply(listed))
        )
    yield Strategy("a reference of another task", "others", partial(_another, learned))
    for name, feature in {**_EXACT, **_binned(learned)}.items():
        table = _majorities(learned, feature)
        yield Strategy(
            f"the most frequent reference by {name}",
            "others",
            partial(_look_up, table, feature, frequent[0][0]),
        )


def _majorities(
    learned: Sequence[tuple[SeenPrompt, str]], feature: Feature
) -> Mapping[Hashable, str]:
    """Return the most frequent reference for each value of a feature that is seen often."""
    counts: dict[Hashable, Counter[str]] = {}
    for asked, reference in learned:
        counts.setdefault(feature(asked), Counter())[reference] += 1
    return {
        value: counter.most_common(1)[0][0]
        for value, counter in counts.items()
        if counter.total() >= _LEAST_SEEN
    }


def _look_up(
    table: Mapping[Hashable, str], feature: Feature, otherwise: str, asked: SeenPrompt
) -> str:
    return table.get(feature(asked), otherwise)


_EXACT: Mapping[str, Feature] = {
    "the wording of the prompt": lambda asked: asked.wording,
    "the first word": lambda asked: "".join(asked.words[:1]),
    "the last word": lambda asked: "".join(asked.words[-1:]),
    "the first number": lambda asked: "".join(asked.numbers[:1]),
    "the last number": lambda asked: "".join(asked.numbers[-1:]),
    "the parity of the last number": lambda asked: "".join(asked.numbers[-1:])[-1:] in set("02468"),
    "which of two numbers is larger": lambda asked: (
        len(asked.numbers) > 1 and float(asked.numbers[0]) > float(asked.numbers[-1])
    ),
}
_MEASURES: Mapping[str, Callable[[SeenPrompt], float]] = {
    "the number of words": lambda asked: len(asked.words),
    "the length of the prompt": lambda asked: len(asked.question),
    "the count of numbers": lambda asked: len(asked.numbers),
    "the size of the first number": lambda asked: float("".join(asked.numbers[:1]) or 0),
    "the size of the last number": lambda asked: float("".join(asked.numbers[-1:]) or 0),
    "the length of the last quotation": lambda asked: len("".join(asked.quoted[-1:])),
}


def _binned(learned: Sequence[tuple[SeenPrompt, str]]) -> dict[str, Feature]:
    """Return each measure of a prompt, divided at the quantiles of the learned prompts."""
    features: dict[str, Feature] = {}
    for name, measure in _MEASURES.items():
        values = sorted(measure(asked) for asked, _ in learned)
        bounds = sorted({values[len(values) * k // _BINS] for k in range(1, _BINS)})
        features[name] = partial(_bin, measure, bounds)
    return features


def _bin(measure: Callable[[SeenPrompt], float], bounds: Sequence[float], asked: SeenPrompt) -> int:
    return bisect_left(bounds, measure(asked))


def _another(learned: Sequence[tuple[SeenPrompt, str]], asked: SeenPrompt) -> str:
    """Return a reference that the prompt picks, but not by what it says."""
    return learned[crc32(asked.text.encode("utf-8", "replace")) % len(learned)][1]
