"""Cuts gaps into a text, and fills gaps with texts."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import Literal

from grpo_core import MASK

Unit = Literal["word", "character"]
WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Gaps:
    """A text with gaps."""

    pieces: tuple[str, ...]
    """The text before, between and behind the gaps: one piece more than there are gaps."""
    golds: tuple[str, ...]
    """The original text of each gap."""
    tokens: tuple[int, ...]
    """Length of each gap in units."""
    unit: Unit

    @property
    def masked(self) -> str:
        """The text with one `MASK` for each missing unit."""
        between = " " if self.unit == "word" else ""
        return self.filled([between.join([MASK] * count) for count in self.tokens])

    @property
    def marked(self) -> str:
        """The text with "___" for each gap."""
        return self.filled(["___"] * len(self.golds))

    def filled(self, fills: Sequence[str]) -> str:
        """Return the text with `fills` in the gaps."""
        return "".join(a + b for a, b in zip_longest(self.pieces, fills, fillvalue=""))

    def core(self, fills: Sequence[str]) -> str:
        """Return the filled text from the first gap to the last."""
        return self.filled(fills)[len(self.pieces[0]) :].removesuffix(self.pieces[-1])


def cut(text: str, rng: random.Random, *, unit: Unit, rate: float, span: int) -> Gaps:
    """Cut about the share `rate` of the text's units out of it, with at least one gap.

    Gaps do not touch each other. A text shorter than a gap becomes one gap.

    Args:
        unit: What counts as a unit: a word or a character.
        span: Largest number of neighbouring units in a gap; a gap has at least 1 word or 2
            characters.
    """
    places = (
        [match.span() for match in WORD.finditer(text)]
        if unit == "word"
        else [(i, i + 1) for i in range(len(text))]
    )
    if not places:
        places = [(0, len(text))]
    target, taken = max(1, round(rate * len(places))), [False] * len(places)
    spans: list[tuple[int, int]] = []
    for _ in range(20 * target):
        left = target - sum(taken)
        if left <= 0:
            break
        shortest = 1 if unit == "word" else 2
        length = min(rng.randint(shortest, max(shortest, span)), max(shortest, left), len(places))
        first = rng.randrange(len(places) - length + 1)
        last = first + length - 1
        if any(taken[max(0, first - 1) : last + 2]) or not _are_adjacent(
            text, places[first : last + 1]
        ):
            continue
        taken[first : last + 1] = [True] * length
        spans.append((first, last))
    spans = sorted(spans) or [(0, 0)]
    starts, ends = [places[first][0] for first, _ in spans], [places[last][1] for _, last in spans]
    pieces = [text[a:b] for a, b in zip([0, *ends], [*starts, len(text)], strict=True)]
    golds = [text[a:b] for a, b in zip(starts, ends, strict=True)]
    return Gaps(tuple(pieces), tuple(golds), tuple(last - first + 1 for first, last in spans), unit)


def _are_adjacent(text: str, places: Sequence[tuple[int, int]]) -> bool:
    """Return whether neighbours are separated by at most one space (characters always are)."""
    return all(text[end:start] in ("", " ") for (_, end), (start, _) in pairwise(places))
