"""Cuts gaps into a text, and puts texts into gaps."""

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
    """pieces: what stands around the gaps, one more than there are gaps; golds: what stood in them; tokens: of each gap, in its unit."""

    pieces: tuple[str, ...]
    golds: tuple[str, ...]
    tokens: tuple[int, ...]
    unit: Unit

    @property
    def masked(self) -> str:
        """The text with `MASK` for each token that is to be filled in."""
        between = " " if self.unit == "word" else ""
        return self.filled([between.join([MASK] * count) for count in self.tokens])

    @property
    def marked(self) -> str:
        """The text with a line for each gap."""
        return self.filled(["___"] * len(self.golds))

    def filled(self, fills: Sequence[str]) -> str:
        return "".join(a + b for a, b in zip_longest(self.pieces, fills, fillvalue=""))

    def core(self, fills: Sequence[str]) -> str:
        """From the first gap to the last."""
        return self.filled(fills)[len(self.pieces[0]) :].removesuffix(self.pieces[-1])


def cut(text: str, rng: random.Random, *, unit: Unit, rate: float, span: int) -> Gaps:
    """About `rate` of the text's units in gaps of 1 to `span` neighbours (of 2 and more, where they are characters), at least one gap.

    Gaps do not touch. A text shorter than a gap is one gap.
    """
    places = (
        [match.span() for match in WORD.finditer(text)]
        if unit == "word"
        else [(i, i + 1) for i in range(len(text))]
    )
    if not places:
        places = [(0, len(text))]
    wanted, taken = max(1, round(rate * len(places))), [False] * len(places)
    found: list[tuple[int, int]] = []
    for _ in range(20 * wanted):
        left = wanted - sum(taken)
        if left <= 0:
            break
        shortest = 1 if unit == "word" else 2
        length = min(rng.randint(shortest, max(shortest, span)), max(shortest, left), len(places))
        first = rng.randrange(len(places) - length + 1)
        last = first + length - 1
        if any(taken[max(0, first - 1) : last + 2]) or not _together(
            text, places[first : last + 1]
        ):
            continue
        taken[first : last + 1] = [True] * length
        found.append((first, last))
    found = sorted(found) or [(0, 0)]
    starts, ends = [places[first][0] for first, _ in found], [places[last][1] for _, last in found]
    pieces = [text[a:b] for a, b in zip([0, *ends], [*starts, len(text)], strict=True)]
    golds = [text[a:b] for a, b in zip(starts, ends, strict=True)]
    return Gaps(tuple(pieces), tuple(golds), tuple(last - first + 1 for first, last in found), unit)


def _together(text: str, places: Sequence[tuple[int, int]]) -> bool:
    """Whether only single spaces stand between words; characters always stand together."""
    return all(text[end:start] in ("", " ") for (_, end), (start, _) in pairwise(places))
