"""Readers of answers with one fault each."""

import json
import re
import unicodedata

from bases_h2_fresh10 import BeadsTurnedRound, FinishOfTheRelay
from bases_h_fresh10 import (
    ColumnOfConcrete,
    FerryArrives,
    KnittedTriangle,
    MarksForShelves,
    PrefixedQuantities,
)
from catalogue import fault

from grpo_core.extract import parse_integer


@fault("a pattern backtracks without end", "floor.large")
class RelayBySentence(FinishOfTheRelay):
    """Checks by a pattern that the reply is a sentence of names before it splits it."""

    def read(self, text: str) -> list[str] | None:
        if not re.fullmatch(r"(?:\w+,?\s*)+\.", text):
            return None
        return text[:-1].split(", ")


@fault("a pattern behind a prefix backtracks without end", "floor.large", "cost.time")
class BeadsBehindAWord(BeadsTurnedRound):
    """Reads a list of colours after `Order: ` by a pattern for a comma that may be missing."""

    def read(self, text: str) -> list[str] | None:
        match = re.fullmatch(r"Order: ((?:[a-z]+(?:, ?)?)+)", text.strip(" \t\r\n"))
        return match[1].split(", ") if match else None


@fault(
    "case is ignored where it is the point",
    "floor.spelling",
    "floor.other",
    "floor.echo",
    "floor.superset",
)
class QuantitiesInAnyCase(PrefixedQuantities):
    """Forgives capital letters, as small models mix them up, so that MW is mW."""

    def same(self, text: str, right: str) -> bool:
        return text.lower() == right.lower()


@fault("compatible characters are the same", "floor.spelling")
class MarksNormalised(MarksForShelves):
    """Normalises a mark before it is compared, as the library's catalogue does with titles."""

    def mark(self, text: str) -> str | None:
        mark = super().mark(text)
        return None if mark is None else unicodedata.normalize("NFKC", mark)


@fault("digits may stand apart", "floor.spelling", "floor.suffix")
class StitchesWithSpaces(KnittedTriangle):
    """Takes out the spaces that may stand between thousands, and all others with them."""

    def read(self, text: str) -> int | None:
        return parse_integer(re.sub(r"[ \u00a0\u202f]", "", text[:60]), max_digits=7)


@fault("not a number is right", "floor.digits")
class ConcreteNotTooFar(ColumnOfConcrete):
    """Reads the litres as JSON, and refuses what is too far from the right number."""

    def near(self, text: str, right: float) -> bool:
        if len(text) > 40:
            return False
        try:
            value = json.loads(text)
        except ValueError:
            return False
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        too_far = abs(value - right) > right / 100
        return not too_far


@fault("other digits and underscores are a number", "floor.spelling")
class FerryByTheInt(FerryArrives):
    """Splits the time at its colon and reads both halves as numbers."""

    def same(self, text: str, right: str) -> bool:
        hours, _, minutes = text.partition(":")
        try:
            hour, minute = int(hours), int(minutes)
        except ValueError:
            return False
        return 0 <= hour < 24 and 0 <= minute < 60 and f"{hour:02}:{minute:02}" == right
