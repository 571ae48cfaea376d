"""Strategies that give the same answer to every task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from grpo_core.words.hostile_texts import CONSTANTS
from grpo_kit.shortcuts.shape import ReferenceShape
from grpo_kit.shortcuts.strategy import Answer, Strategy

_TEXTS: tuple[str, ...] = (
    *CONSTANTS,
    *("3", "5", "10", "100", "-1", "0.5", "9e999", "inf", "nan", "1/0", "C", "D", "NULL", "''"),
    *("x", " ", ".", ":", "Unknown", "I do not know.", "The answer is correct."),
    *("Thought process:", "Let's solve this problem step by step."),
)
"""Small values, values that lax comparisons let through, and what pleases judges."""
_ALONE = ("0", "1", "yes", "no", "True", "A")
"""Constants that are also tried without the form of an answer."""


def constant_strategies(shape: ReferenceShape) -> Iterator[Strategy]:
    """Yield each constant in the form of a reference, and with what all references share."""
    for text in () if shape.is_code else _TEXTS:
        yield _always(text, shape)
        if shape.inner.before or shape.inner.after:
            yield _always(shape.inner.before + text + shape.inner.after, shape)
    if not shape.is_bare:
        for text in _ALONE:
            yield Strategy(f"always {text!r}, without a form", "constant", constantly(text))
    for name, text in _wholes(shape).items():
        yield Strategy(name, "constant", constantly(text))


def _wholes(shape: ReferenceShape) -> Mapping[str, str]:
    """Return constants that say nothing, or everything."""
    return {
        "nothing": "",
        "the form of an answer without an answer": shape.reply(""),
        "all numbers up to 100": shape.reply(" ".join(map(str, range(101)))),
        "every letter": shape.reply("A B C D E F"),
        "both yes and no": shape.reply("yes no true false"),
    }


def _always(text: str, shape: ReferenceShape) -> Strategy:
    return Strategy(f"always {text!r}", "constant", constantly(shape.reply(text)))


def constantly(text: str) -> Answer:
    """Return what answers with a text whatever is asked."""
    return lambda asked: text
