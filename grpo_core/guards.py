"""Reject texts that a judge model alone would reward although it should not.

Those are texts of the wrong length, repetition, and copies of the context.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from dataclasses import dataclass
from difflib import SequenceMatcher

MIN_COPY_CHARS = 20
"""The shortest text that can count as a copy; a shorter one may be in the context by chance."""


@dataclass(frozen=True, slots=True)
class Guards:
    """Holds the limits that a text must keep."""

    shortest: float = 0.5
    """The smallest length, in characters, as a multiple of the reference's."""
    longest: float = 2.0
    """The largest length, in characters, as a multiple of the reference's."""
    distinct: float = 0.5
    """The smallest share of distinct pairs among the pairs of neighbouring words."""
    copied: float = 0.8
    """The largest share of a text that occurs in its context in one piece."""

    def fault(self, text: str, *, reference: str, context: str) -> str | None:
        """Return what is wrong with `text`, in a few words, or None.

        Repetition and copying are allowed as far as the reference itself contains them.
        """
        if not self.shortest * len(reference) <= len(text) <= self.longest * len(reference):
            return f"{len(text)} characters, where the reference has {len(reference)}"
        if distinct_pairs(text) < min(self.distinct, distinct_pairs(reference)):
            return "it repeats itself"
        if len(text) >= MIN_COPY_CHARS and copied(text, context) > max(
            self.copied, copied(reference, context)
        ):
            return "it is a copy of the context"
        return None


def shuffled(text: str) -> str:
    """Return the words of `text`, or the characters of a single word, in a shuffled order.

    The order depends only on the text, and differs from the original one where that is possible.
    """
    words = text.split()
    units, separator = (words, " ") if len(words) > 1 else (list(text), "")
    rng = random.Random(hashlib.sha256(text.encode()).digest())
    for _ in range(8):
        rng.shuffle(units)
        if separator.join(units) != text:
            break
    return separator.join(units)


def distinct_pairs(text: str) -> float:
    """Return the share of distinct pairs among the pairs of neighbouring words.

    In a text of at most two words these are pairs of characters; without pairs the share is 1.
    """
    units = text.split() if len(text.split()) > 2 else list(text)
    pairs = list(itertools.pairwise(units))
    return len(set(pairs)) / len(pairs) if pairs else 1.0


def copied(text: str, context: str) -> float:
    """Return the largest share of `text` that occurs in `context` in one piece."""
    match = SequenceMatcher(None, text, context, autojunk=False).find_longest_match()
    return match.size / len(text) if text else 0.0
