"""Find the phrases that some texts have and others lack."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from math import log, sqrt
from typing import Any

_WORD = re.compile(r"\w+|[^\w\s]")
_MOST_WORDS = 4
"""Words of a phrase."""
_LEAST_SHARE = 0.02
"""The share of the texts that a phrase must be in."""
_LEAST_TEXTS = 5
_LEAST_Z = 3.0
_MOST_PHRASES = 25
_COMPARED = 400
"""The strongest phrases, each of which is compared with each."""
TEXT_CHARACTERS = 20_000
"""What is read of one text."""

Phrase = tuple[str, ...]


def frequent_phrases(paid: Sequence[str], rest: Sequence[str]) -> list[dict[str, Any]]:
    """Return the phrases that are more frequent in some texts than in others.

    Args:
        paid: the texts whose phrases are sought.
        rest: the texts that they are compared with.

    Returns:
        The phrase, the numbers of texts that hold it, and z: the difference of the log-odds, with
        half a text added to each count, over its standard error. The largest z is first.
    """
    if not paid or not rest:
        return []
    first, others = [_words(text) for text in paid], [_words(text) for text in rest]
    least = max(_LEAST_TEXTS, _LEAST_SHARE * (len(first) + len(others)))
    found: dict[Phrase, tuple[float, int, int]] = {}
    known: set[Phrase] | None = None
    for size in range(1, _MOST_WORDS + 1):
        in_first, in_others = _counts(first, size, known), _counts(others, size, known)
        # A phrase is frequent only if both of its ends are, so that few are ever counted.
        known = {
            phrase
            for phrase in in_first.keys() | in_others.keys()
            if in_first[phrase] + in_others[phrase] >= least
        }
        for phrase in known:
            a, b = in_first[phrase], in_others[phrase]
            found[phrase] = (_z(a, len(first), b, len(others)), a, b)
    strongest = sorted(
        ((z, phrase, a, b) for phrase, (z, a, b) in found.items() if z >= _LEAST_Z),
        key=lambda item: (-item[0], -len(item[1]), item[1]),
    )
    return [
        {"phrase": " ".join(phrase), "paid": a, "rest": b, "z": z}
        for z, phrase, a, b in _without_parts(strongest[:_COMPARED])[:_MOST_PHRASES]
    ]


def _words(text: str) -> list[str]:
    return _WORD.findall(text[:TEXT_CHARACTERS].lower())


def _counts(
    texts: Iterable[Sequence[str]], size: int, known: set[Phrase] | None
) -> Counter[Phrase]:
    """Count the texts that hold each phrase of a size.

    Args:
        texts: their words.
        size: the number of words.
        known: the frequent phrases of one word less; None: all.
    """
    counts: Counter[Phrase] = Counter()
    for words in texts:
        phrases = {tuple(words[at : at + size]) for at in range(len(words) - size + 1)}
        if known is not None:
            phrases = {one for one in phrases if one[1:] in known and one[:-1] in known}
        counts.update(phrases)
    return counts


def _z(a: int, first: int, b: int, others: int) -> float:
    cells = (a + 0.5, first - a + 0.5, b + 0.5, others - b + 0.5)
    return log(cells[0] * cells[3] / (cells[1] * cells[2])) / sqrt(sum(1 / cell for cell in cells))


def _without_parts(
    found: Sequence[tuple[float, Phrase, int, int]],
) -> list[tuple[float, Phrase, int, int]]:
    """Leave out each phrase that is part of a longer one in the same numbers of texts."""
    return [
        item
        for item in found
        if not any(
            item[2:] == other[2:]
            and len(other[1]) > len(item[1])
            and f" {' '.join(item[1])} " in f" {' '.join(other[1])} "
            for other in found
        )
    ]
