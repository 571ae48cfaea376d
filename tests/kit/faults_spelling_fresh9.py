"""Environments with one planted fault each, in how answers may be spelled."""

from __future__ import annotations

import re
from collections.abc import Mapping

from bases_f2_fresh9 import GasMeterNow
from bases_f_fresh9 import WHITE, HerbStall, TrailTotals
from catalogue import fault

from grpo_core.extract import parse_json


@fault("JSON that is not an object is an error", "floor.digits", "floor.nested", "floor.junk")
class TrailTakesAnObject(TrailTotals):
    """Reads JSON, and asks whatever it is for its keys, also a number or a list."""

    def right(self, text: str, totals: Mapping[str, int]) -> bool:
        found = parse_json(text.strip(WHITE), max_chars=500, max_digits=12)
        if found is None:
            return False
        record = found.value
        if record.keys() != totals.keys():
            return False
        return all(type(record[name]) is int and record[name] == totals[name] for name in totals)


@fault("digits may stand apart", "floor.spelling", "floor.suffix")
class MeterDigitByDigit(GasMeterNow):
    """Drops white space anywhere, since readers of meters write digits in boxes."""

    def digits(self, text: str) -> str:
        return re.sub(r"[ \t\r\n]+", "", text)


@fault("the same key may stand twice", "floor.spelling", "floor.listed", "floor.superset")
class HerbOnTwoLines(HerbStall):
    """Collects the lines by herb, and looks whether the right cost is among them."""

    def right(self, pairs: list[tuple[str, int]], costs: Mapping[str, int]) -> bool:
        said: dict[str, set[int]] = {}
        for herb, cents in pairs:
            said.setdefault(herb, set()).add(cents)
        return said.keys() == costs.keys() and all(costs[herb] in said[herb] for herb in costs)
