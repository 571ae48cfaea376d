"""Sound environments with a single reply: fines, trails, herbs and trams."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import count
from typing import ClassVar, TypeVar

from grpo_core import (
    Environment,
    Message,
    Reward,
    Rollout,
    Task,
    TaskKey,
    Verdict,
    held_out,
)
from grpo_core.extract import parse_json, xml_tag

WHITE = " \t\r\n"
LONGEST = 4000
"""The most characters of a reply that is read."""
Item = TypeVar("Item")


def drawn(key: TaskKey, make: Callable[[random.Random], Item], asks: Callable[[Item], str]) -> Item:
    """Return the first item of the key's stream whose question belongs to the key's split."""
    rng = key.rng()
    items = (make(rng) for _ in count())
    return next(item for item in items if held_out(asks(item)) == (key.split == "eval"))


def chat(text: str) -> tuple[Message, ...]:
    """Return a prompt of one message."""
    return (Message("user", text),)


@dataclass(frozen=True, slots=True)
class Loan:
    """Holds a book that came back late."""

    title: str
    rate: int
    """Cents per day."""
    due: date
    returned: date
    grace: int
    """The first days after the due date, which cost nothing."""

    @property
    def cents(self) -> int:
        """Return the fine."""
        return self.rate * max(0, (self.returned - self.due).days - self.grace)


TITLES = (
    "The Salt Road",
    "Bees of the Alps",
    "A Winter Atlas",
    "Glass and Fire",
    "The Ninth Bridge",
    "Letters from Oran",
    "Maps of Nowhere",
    "The Clockmaker",
    "Tides and Moons",
    "Rust",
)


class LateBookFines(Environment[Loan]):
    """Asks what a late book costs; the last line of the reply is "Fine: 3.40"."""

    max_new_tokens = 200

    def loan(self, rng: random.Random, key: TaskKey) -> Loan:
        """Return a loan; from level 0.5 on some days are free."""
        due = date(2019, 1, 1) + timedelta(days=rng.randrange(1800))
        late = rng.randint(6, 12 + round(30 * key.level))
        grace = rng.randint(1, 4) if key.level >= 0.5 else 0
        rate = rng.choice((5, 8, 10, 12, 15, 20, 25, 30, 35, 40))
        return Loan(rng.choice(TITLES), rate, due, due + timedelta(days=late), grace)

    def question(self, loan: Loan) -> str:
        """Return the question."""
        free = f" The first {loan.grace} days after that are free." if loan.grace else ""
        return (
            f'"{loan.title}" was due on {loan.due}.{free} Each further day costs {loan.rate} '
            f"cents. It came back on {loan.returned}. How much is the fine, in euros? "
            "End with a line like this: Fine: 0.00"
        )

    def task(self, key: TaskKey) -> Task[Loan]:
        loan = drawn(key, lambda rng: self.loan(rng, key), self.question)
        return Task(key, chat(self.question(loan)), loan)

    def read(self, text: str) -> int | None:
        """Return the cents that the last line names."""
        last = text[-LONGEST:].strip(WHITE).rpartition("\n")[2].strip(WHITE)
        found = re.fullmatch(r"Fine: (0|[1-9][0-9]{0,3})\.([0-9]{2})", last, re.ASCII)
        return None if found is None else 100 * int(found[1]) + int(found[2])

    def verify(self, task: Task[Loan], rollout: Rollout) -> Verdict:
        cents = self.read(rollout.text)
        right = cents == task.data.cents
        return Verdict({"reward": Reward(right)}, passed=right, answer=rollout.text[-40:])

    def reference(self, task: Task[Loan]) -> str:
        euros, cents = divmod(task.data.cents, 100)
        return f"Fine: {euros}.{cents:02d}"


@dataclass(frozen=True, slots=True)
class Trail:
    """Holds the stages of a walk: lengths and climbs."""

    name: str
    stages: tuple[tuple[int, int], ...]

    @property
    def totals(self) -> dict[str, int]:
        """Return what the reply has to say."""
        return {
            "length": sum(length for length, _ in self.stages),
            "climb": sum(climb for _, climb in self.stages),
        }


PASSES = (
    "Karwendel",
    "Rila",
    "Tatra",
    "Lofoten",
    "Vanoise",
    "Retezat",
    "Sarek",
    "Picos",
    "Olympus",
)


class TrailTotals(Environment[Trail]):
    """Asks for length and climb of a walk in stages, as a JSON object."""

    max_new_tokens = 60

    def trail(self, rng: random.Random, key: TaskKey) -> Trail:
        """Return a walk of two to five stages."""
        stages = tuple(
            (rng.randint(6, 24), rng.randint(21, 150) * 10) for _ in range(2 + round(3 * key.level))
        )
        return Trail(rng.choice(PASSES), stages)

    def units(self) -> tuple[str, str]:
        """Return the units of length and climb."""
        return "km", "m"

    def question(self, trail: Trail) -> str:
        """Return the question."""
        far, high = self.units()
        stages = "; ".join(
            f"{length} {far} with {climb} {high} up" for length, climb in trail.stages
        )
        return (
            f"The stages of the {trail.name} walk: {stages}. How long is it, and how much does it "
            'climb? Reply with JSON alone: {"length": ..., "climb": ...}'
        )

    def task(self, key: TaskKey) -> Task[Trail]:
        trail = drawn(key, lambda rng: self.trail(rng, key), self.question)
        return Task(key, chat(self.question(trail)), trail)

    def right(self, text: str, totals: Mapping[str, int]) -> bool:
        """Return whether a reply is the object with both totals."""
        found = parse_json(text.strip(WHITE), max_chars=500, max_digits=12)
        record = None if found is None else found.value
        return (
            isinstance(record, dict)
            and set(record) == set(totals)
            and all(type(record[name]) is int and record[name] == totals[name] for name in totals)
        )

    def verify(self, task: Task[Trail], rollout: Rollout) -> Verdict:
        right = self.right(rollout.text, task.data.totals)
        return Verdict({"reward": Reward(right)}, passed=right, answer=rollout.text[:80])

    def reference(self, task: Task[Trail]) -> str:
        totals = task.data.totals
        return f'{{"length": {totals["length"]}, "climb": {totals["climb"]}}}'


HERBS = (
    "sage",
    "thyme",
    "lovage",
    "chervil",
    "dill",
    "tarragon",
    "sorrel",
    "borage",
    "hyssop",
    "savory",
    "marjoram",
    "fennel",
)


@dataclass(frozen=True, slots=True)
class Basket:
    """Holds what is bought at a herb stall: (herb, cents a bunch, bunches)."""

    rows: tuple[tuple[str, int, int], ...]

    @property
    def costs(self) -> dict[str, int]:
        """Return the cents for each herb."""
        return {herb: price * bunches for herb, price, bunches in self.rows}


class HerbStall(Environment[Basket]):
    """Asks what each herb costs, one line "herb: cents" for each, in any order."""

    max_new_tokens = 80

    def herbs(self, rng: random.Random, number: int) -> list[str]:
        """Return the herbs that are bought."""
        return rng.sample(HERBS, number)

    def price(self, rng: random.Random, herb: str) -> int:
        """Return the price of a bunch."""
        return rng.randint(41, 189)

    def basket(self, rng: random.Random, key: TaskKey) -> Basket:
        """Return two to four herbs with their prices."""
        herbs = self.herbs(rng, 2 + round(2 * key.level))
        return Basket(tuple((herb, self.price(rng, herb), rng.randint(2, 9)) for herb in herbs))

    def question(self, basket: Basket) -> str:
        """Return the question."""
        rows = ", ".join(f"{many} x {herb} at {price}" for herb, price, many in basket.rows)
        return (
            f"At the stall, prices in cents a bunch: {rows}. What does each herb cost? "
            'One line for each, like "mint: 120", and nothing else.'
        )

    def task(self, key: TaskKey) -> Task[Basket]:
        basket = drawn(key, lambda rng: self.basket(rng, key), self.question)
        return Task(key, chat(self.question(basket)), basket)

    def lines(self, text: str) -> list[tuple[str, int]] | None:
        """Return the lines as pairs; None if one has another form."""
        if len(text) > LONGEST:
            return None
        pairs = []
        for line in text.strip(WHITE).split("\n"):
            found = re.fullmatch(r"([a-z]{1,12}): ([1-9][0-9]{0,5})", line.strip(WHITE), re.ASCII)
            if found is None:
                return None
            pairs.append((found[1], int(found[2])))
        return pairs

    def right(self, pairs: list[tuple[str, int]], costs: Mapping[str, int]) -> bool:
        """Return whether each herb stands once, with its cost."""
        return sorted(pairs) == sorted(costs.items())

    def verify(self, task: Task[Basket], rollout: Rollout) -> Verdict:
        pairs = self.lines(rollout.text)
        right = pairs is not None and self.right(pairs, task.data.costs)
        return Verdict({"reward": Reward(right)}, passed=right, answer=rollout.text[:80])

    def reference(self, task: Task[Basket]) -> str:
        return "\n".join(f"{herb}: {cents}" for herb, cents in task.data.costs.items())


@dataclass(frozen=True, slots=True)
class LogEntry:
    """Holds a time that a tram's logger wrote, in seconds."""

    midnight: int
    second: int

    @property
    def clock(self) -> str:
        """Return the time of the day."""
        return datetime.fromtimestamp(self.second, UTC).strftime("%H:%M")


class TramLogger(Environment[LogEntry]):
    """Asks for the time of a logged second, in <time></time>; 0.2 is for the form."""

    parts: ClassVar[Mapping[str, float]] = {"form": 0.2, "right": 0.8}
    max_new_tokens = 200

    def entry(self, rng: random.Random, key: TaskKey) -> LogEntry:
        """Return an entry; the higher the level, the later it may be in the day."""
        midnight = 86400 * rng.randint(17000, 19500)
        minute = rng.randint(61, 200 + round(1200 * key.level))
        return LogEntry(midnight, midnight + 60 * minute)

    def question(self, entry: LogEntry) -> str:
        """Return the question."""
        day = datetime.fromtimestamp(entry.midnight, UTC).date()
        return (
            f"A tram's logger counts seconds. On {day} it stood at {entry.midnight} when the day "
            f"began (UTC). The doors jammed at {entry.second}. What time of that day was it, in "
            "UTC? Reply with hours and minutes of a 24-hour clock, as in <time>23:59</time>."
        )

    def task(self, key: TaskKey) -> Task[LogEntry]:
        entry = drawn(key, lambda rng: self.entry(rng, key), self.question)
        return Task(key, chat(self.question(entry)), entry)

    def clock_in(self, text: str) -> str | None:
        """Return the time that a reply names."""
        block = None if len(text) > LONGEST else xml_tag(text, tag="time")
        said = "" if block is None else block.content.strip(WHITE)
        return said if re.fullmatch(r"([01][0-9]|2[0-3]):[0-5][0-9]", said, re.ASCII) else None

    def expected(self, entry: LogEntry) -> str:
        """Return the right time."""
        return entry.clock

    def form(self, said: str | None) -> float:
        """Return what the form of a reply earns."""
        return float(said is not None)

    def verify(self, task: Task[LogEntry], rollout: Rollout) -> Verdict:
        said = self.clock_in(rollout.text)
        right = said == self.expected(task.data)
        return Verdict(
            {"form": Reward(self.form(said)), "right": Reward(right)}, passed=right, answer=said
        )

    def reference(self, task: Task[LogEntry]) -> str:
        return f"<time>{task.data.clock}</time>"
