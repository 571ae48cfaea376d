"""Planted faults of the sixth fresh part: how answers are read."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import parse_qsl

from bases_fresh6 import WHITE, Deltas, Harvest, at_the_end, last_line
from bases_words_fresh6 import Averages, Camel, Field, Gates, Queries, Tour
from catalogue import fault

from grpo_core.extract import parse_json


@fault("a pattern behind a prefix backtracks without end", "floor.large", "cost.time")
class RouteByPattern(Tour):
    """A name, perhaps of several words, and a comma, as often as there are some."""

    def read(self, text: str) -> Any:
        found = re.search(
            r"^Route: ((?:(?:[A-Z]\w*[ -]?)+(?:, |\Z))+)\Z", text.strip(WHITE), re.MULTILINE
        )
        return found[1].split(", ") if found else None


@fault(
    "an index that the reply names is out of range",
    "verdict.form",
    "floor.digits",
    "floor.near",
    "floor.junk",
    "floor.constant",
)
class NumberAtThePlace(Field):
    """The number at the place is compared, since none stands on a field twice."""

    def fits(self, truth: Any, answer: Any) -> bool:
        rows, (row, column) = truth["rows"], truth["place"]
        return bool(rows[answer[0]][answer[1]] == rows[row][column])


@fault(
    "case is ignored where it is the point",
    "floor.spelling",
    "floor.near",
    "floor.other",
    "floor.echo",
    "floor.superset",
)
class CamelsOfAnyCase(Camel):
    """Answers were folded in all environments of the author."""

    def read(self, text: str) -> Any:
        return text.strip(WHITE).casefold()

    def fits(self, truth: Any, answer: Any) -> bool:
        return bool(answer == truth.casefold())


@fault("digits may stand apart", "floor.spelling", "floor.suffix")
class SpacedThousands(Harvest):
    """Meant for thousands, as in 12 500 kg."""

    def read(self, text: str) -> Any:
        said = at_the_end(text, "weight")
        found = re.fullmatch("([0-9][0-9 ]{0,14}) kg", said or "")
        return f"{found[1].replace(' ', '')} kg" if found else None


@fault("not a number is right", "floor.digits", "floor.near")
class FarFromTheMean(Averages):
    """Means that are too far away are refused; one that is no number is never far."""

    def read(self, text: str) -> Any:
        if len(text) > 400:
            return None
        try:
            said = json.loads(text, parse_int=float)
        except (ValueError, RecursionError):
            return None
        numbers = isinstance(said, list) and all(type(x) is float for x in said)
        return said if numbers else None

    def fits(self, truth: Any, answer: Any) -> bool:
        if len(answer) != len(truth):
            return False
        return not any(abs(x - y) > 1e-9 for x, y in zip(answer, truth, strict=True))


@fault(
    "the same key may stand twice",
    "floor.spelling",
    "floor.suffix",
    "floor.listed",
    "floor.superset",
)
class LastFieldCounts(Queries):
    """Pairs go into a dictionary, where the last one of a name stays."""

    def read(self, text: str) -> Any:
        said = text.strip(WHITE)
        if len(said) > 300 or not re.fullmatch("[a-z]+=[0-9]+(&[a-z]+=[0-9]+)*", said):
            return None
        return dict(parse_qsl(said))


@fault("true is 1", "floor.spelling")
class TruthOfGates(Gates):
    """Bits have to be whole numbers, and Python counts true among these."""

    def read(self, text: str) -> Any:
        found = parse_json(text, max_chars=400)
        if found is None or not isinstance(found.value, list):
            return None
        return found.value if all(isinstance(bit, int) for bit in found.value) else None


@fault("white space inside the answer is dropped", "floor.spelling", "floor.near")
class ChangesWithoutSpaces(Deltas):
    """Two spaces between numbers were to be as good as one."""

    def read(self, text: str) -> Any:
        label, _, rest = last_line(text).partition(":")
        return "".join(rest.split()) or None if label == "Changes" else None

    def fits(self, truth: Any, answer: Any) -> bool:
        return bool(answer == "".join(truth.split()))
