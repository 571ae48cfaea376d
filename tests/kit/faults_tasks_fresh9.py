"""Faults in how tasks are made, of the kinds E."""

from __future__ import annotations

import random

from bases_e2_fresh9 import GOODS, Berth, BerthFees, KnightByWayOf, ParcelProcedure
from bases_e_fresh9 import TimeSheetTotal
from catalogue import fault


@fault("a prompt has several right answers, one is accepted", "task.ambiguous")
class KnightByTheDrawnWay(KnightByWayOf):
    """Should ask for the square between; only the one that was drawn with the trip is accepted."""

    def choose(self, rng: random.Random) -> tuple[str, tuple[str, str, list[str]]]:
        text, (start, goal, between) = super().choose(rng)
        return text, (start, goal, [rng.choice(between)])


@fault("held-out tasks are training tasks", "task.split")
class KnightHeldOutByTheWholeWay(KnightByWayOf):
    """Should hold out trips; a trip is split together with one of its ways, which is not asked."""

    def choose(self, rng: random.Random) -> tuple[str, tuple[str, str, list[str]]]:
        _, (start, goal, between) = super().choose(rng)
        return f"{start} {rng.choice(between)} {goal}", (start, goal, between)


@fault("levels do not differ in one half of the range", "task.level")
class TimeSheetLongerFromTheMiddle(TimeSheetTotal):
    """Should begin gently; rows have two entries all the way to the middle of the range."""

    def terms(self, level: float) -> int:
        return 2 + round(5 * max(0.0, 2 * level - 1))


@fault("one answer is right far too often", "floor.balance", "floor.constant")
class ParcelsAsTheyCome(ParcelProcedure):
    """Should ask about parcels as a shop sends them; nearly all of them are standard."""

    def parcel(self, rng: random.Random) -> tuple[str, int, int]:
        goods = rng.choice((*GOODS, "bottles of gin"))
        return goods, rng.randint(2, 6), rng.randint(60, 210)


@fault("rows with the same prompt have different answers", "task.ambiguous")
class BerthFeesOfAnySeason(BerthFees):
    """Should ask for the fee of each row; the question leaves out the season of the row."""

    def question(self, row: Berth) -> str:
        pier, _, length, nights = row
        return f"A boat of {length} metres lies at the {pier} pier for {nights} nights."
