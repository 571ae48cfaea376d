"""What a judge model alone would pay for, and should not: texts of the wrong length, repetition, and copies of what stands around."""

from __future__ import annotations

import hashlib
import itertools
import random
from dataclasses import dataclass
from difflib import SequenceMatcher

LEAST_COPY = 20
"""Characters of the shortest text that can be called a copy: a short one stands somewhere by chance."""


@dataclass(frozen=True, slots=True)
class Guards:
    """shortest, longest: length of a text relative to the reference's, in characters. distinct: least share of different pairs of
    neighbouring words. copied: largest share of a text that stands in its context in one piece."""

    shortest: float = 0.5
    longest: float = 2.0
    distinct: float = 0.5
    copied: float = 0.8

    def fault(self, text: str, *, reference: str, context: str) -> str | None:
        """What is wrong with `text`, in a few words; None if nothing is. A reference's own faults are forgiven."""
        if not self.shortest * len(reference) <= len(text) <= self.longest * len(reference):
            return f"{len(text)} characters, where the reference has {len(reference)}"
        if distinct_pairs(text) < min(self.distinct, distinct_pairs(reference)):
            return "it repeats itself"
        if len(text) >= LEAST_COPY and copied(text, context) > max(
            self.copied, copied(reference, context)
        ):
            return "it is a copy of the context"
        return None


def shuffled(text: str) -> str:
    """Its words, or the characters of a single one, in an order that the text itself fixes, and another one where that is possible."""
    words = text.split()
    units, between = (words, " ") if len(words) > 1 else (list(text), "")
    rng = random.Random(hashlib.sha256(text.encode()).digest())
    for _ in range(8):
        rng.shuffle(units)
        if between.join(units) != text:
            break
    return between.join(units)


def distinct_pairs(text: str) -> float:
    """Of neighbouring words (of characters, in a single word); 1 where there is no pair."""
    words = text.split() if len(text.split()) > 2 else list(text)
    pairs = list(itertools.pairwise(words))
    return len(set(pairs)) / len(pairs) if pairs else 1.0


def copied(text: str, context: str) -> float:
    """Share of `text` that stands in `context` in one piece."""
    longest = SequenceMatcher(None, text, context, autojunk=False).find_longest_match()
    return longest.size / len(text) if text else 0.0
