"""Environments with one planted fault each, in what they depend on."""

from __future__ import annotations

import os
import random
from datetime import date, datetime, timedelta

from bases_f_fresh9 import (
    HERBS,
    TITLES,
    HerbStall,
    LateBookFines,
    Loan,
    LogEntry,
    TrailTotals,
    TramLogger,
)
from catalogue import fault

from grpo_core import TaskKey


@fault("a prompt depends on an environment variable", "task.process")
class TrailUnitsAtHome(TrailTotals):
    """Speaks of miles and feet where the machine's language is American English."""

    def units(self) -> tuple[str, str]:
        language = os.environ.get("LC_ALL") or os.environ.get("LANG") or "C"
        return ("miles", "feet") if language.startswith("en_US") else ("km", "m")


@fault("a prompt depends on the date", "task.process", "task.pure")
class BooksBroughtBackToday(LateBookFines):
    """Lets the book come back today, so that the dates in the prompt look recent."""

    def loan(self, rng: random.Random, key: TaskKey) -> Loan:
        late = rng.randint(6, 12 + round(30 * key.level))
        grace = rng.randint(1, 4) if key.level >= 0.5 else 0
        rate = rng.choice((5, 8, 10, 12, 15, 20, 25, 30, 35, 40))
        today = date.today()
        return Loan(rng.choice(TITLES), rate, today - timedelta(days=late), today, grace)


@fault("a task depends on hash() of a text", "task.process")
class HerbPricedByName(HerbStall):
    """Gives each herb a price of its own that stays the same from task to task."""

    def price(self, rng: random.Random, herb: str) -> int:
        season = rng.randint(0, 40)
        return 41 + season + hash(herb) % 108


@fault("a task depends on the order of a set", "task.process", "verdict.process")
class HerbsNotSoldOut(HerbStall):
    """Draws from the herbs that are left when those that are sold out are taken away."""

    def herbs(self, rng: random.Random, number: int) -> list[str]:
        sold_out = {rng.choice(HERBS)}
        return rng.sample(list(set(HERBS) - sold_out), number)


@fault("a verdict depends on an environment variable", "verdict.process")
class TramClockOfTheMachine(TramLogger):
    """Works the time out anew for the verdict, in the time zone that TZ names."""

    def expected(self, entry: LogEntry) -> str:
        return datetime.fromtimestamp(entry.second).strftime("%H:%M")
