"""Sound tasks of one turn: logs, pantries, formulas, shelves and columns of dates."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from random import Random

from bases_d_fresh8 import WHITE, of_split, whole, words

from grpo_core import Environment, Message, Reward, Rollout, Task, TaskKey, Verdict
from grpo_core.extract import parse_json, xml_tag

HOSTS = ("alder", "birch", "cedar", "maple", "rowan", "willow")
USERS = ("anna", "boris", "chen", "dora", "emil", "farid")


@dataclass(frozen=True, slots=True)
class Transfer:
    """Holds a log of uploads, and whose bytes are asked for."""

    lines: tuple[tuple[int, str, int], ...]
    user: str
    host: str

    @property
    def total(self) -> int:
        """Return the bytes of the user."""
        return sum(size for _, user, size in self.lines if user == self.user)


class UploadLog(Environment[Transfer]):
    """Asks how many bytes a user has sent; the number stands in <answer> tags."""

    max_new_tokens = 200

    def task(self, key: TaskKey) -> Task[Transfer]:
        length = 6 + round(10 * key.level)

        def make(rng: Random) -> Transfer:
            while True:
                seconds = sorted(rng.sample(range(3600), length))
                names = rng.choices(USERS[:4], k=length)
                sizes = rng.sample(range(120, 980), length)
                log = Transfer(
                    tuple(zip(seconds, names, sizes, strict=True)),
                    rng.choice(USERS[:4]),
                    rng.choice(HOSTS),
                )
                if names.count(log.user) >= 2:
                    return log

        log = of_split(key, make, lambda log: f"{log.lines} {log.user}")
        return Task(key, (Message("user", self.question(log)),), log)

    def question(self, log: Transfer) -> str:
        """Return the log with the question."""
        lines = [
            f"04:{at // 60:02}:{at % 60:02} {self.host(log)} ftpd: {user} sent {size} bytes"
            for at, user, size in log.lines
        ]
        return "\n".join(
            (
                *lines,
                f"How many bytes has {log.user} sent in all? You may think first. Put the number "
                "into <answer></answer>.",
            )
        )

    def host(self, log: Transfer) -> str:
        """Return the name of the server that wrote the log."""
        return log.host

    def right(self, task: Task[Transfer], rollout: Rollout) -> bool:
        """Return whether the only block holds the number of bytes."""
        block = xml_tag(rollout.text, tag="answer")
        return block is not None and whole(block.content) == task.data.total

    def verify(self, task: Task[Transfer], rollout: Rollout) -> Verdict:
        right = self.right(task, rollout)
        return Verdict({"reward": Reward(right)}, passed=right, answer=rollout.text[-100:])

    def reference(self, task: Task[Transfer]) -> str:
        return f"<answer>{task.data.total}</answer>"


FOODS = words(
    "rice flour sugar butter lentils oats raisins almonds cocoa barley beans millet walnuts "
    "cheese honey yeast salt noodles peas cream"
)


@dataclass(frozen=True, slots=True)
class Pantry:
    """Holds what a recipe needs and what there is, in grams."""

    need: Mapping[str, int]
    have: Mapping[str, int]

    @property
    def short(self) -> dict[str, int]:
        """Return how much is missing of what falls short."""
        pairs = ((name, grams - self.have[name]) for name, grams in self.need.items())
        return {name: grams for name, grams in pairs if grams > 0}


class ShoppingForARecipe(Environment[Pantry]):
    """Asks what has to be bought for a recipe, a line for each ingredient, in any order."""

    max_new_tokens = 60

    def task(self, key: TaskKey) -> Task[Pantry]:
        size = 4 + round(2 * key.level)
        pantry = of_split(key, lambda rng: self.stock(rng, size), self.wording)
        return Task(key, (Message("user", self.wording(pantry)),), pantry)

    def stock(self, rng: Random, size: int) -> Pantry:
        """Return a pantry in which at least one ingredient falls short."""
        while True:
            names = rng.sample(FOODS, size)
            need = {name: 5 * rng.randint(20, 90) for name in names}
            have = {n: g + 5 * rng.choice((-1, 1)) * rng.randint(1, 18) for n, g in need.items()}
            pantry = Pantry(need, have)
            if pantry.short:
                return pantry

    def names(self, pantry: Pantry) -> Sequence[str]:
        """Return the ingredients in the order in which the prompt lists them."""
        return tuple(pantry.need)

    def wording(self, pantry: Pantry) -> str:
        """Return the question."""
        names = self.names(pantry)
        need = ", ".join(f"{pantry.need[name]} g {name}" for name in names)
        have = ", ".join(f"{pantry.have[name]} g {name}" for name in names)
        return (
            f"The recipe needs {need}. In the pantry there are {have}. For each ingredient that "
            "falls short, write a line with its name and the missing grams, as in: pepper 35"
        )

    def bought(self, text: str) -> dict[str, int] | None:
        """Return the lines of a reply as a dictionary; None if one is no such line."""
        lines = [line.strip(WHITE) for line in text[:2000].split("\n") if line.strip(WHITE)]
        found = [re.fullmatch("([a-z]{2,20}) ([1-9][0-9]{0,3})", line, re.ASCII) for line in lines]
        if len(text) > 2000 or None in found:
            return None
        items = [(match[1], int(match[2])) for match in found if match is not None]
        return dict(items) if len(dict(items)) == len(items) else None

    def verify(self, task: Task[Pantry], rollout: Rollout) -> Verdict:
        right = self.bought(rollout.text) == task.data.short
        return Verdict({"reward": Reward(right)}, passed=right, answer=rollout.text[:100])

    def reference(self, task: Task[Pantry]) -> str:
        return "\n".join(f"{name} {grams}" for name, grams in task.data.short.items())


MASSES = {"C": 12, "H": 1, "N": 14, "O": 16, "F": 19, "Na": 23, "P": 31, "S": 32, "K": 39}


class MassOfAMole(Environment[dict[str, int]]):
    """Asks for the molar mass of a formula, with rounded atomic masses."""

    max_new_tokens = 12

    def task(self, key: TaskKey) -> Task[dict[str, int]]:
        kinds = 3 + round(3 * key.level)

        def make(rng: Random) -> dict[str, int]:
            while True:
                symbols = sorted(rng.sample(sorted(MASSES), kinds))
                formula = {symbol: rng.randint(2, 12) for symbol in symbols}
                if self.mass(formula) > 60:
                    return formula

        formula = of_split(key, make, self.formula)
        listed = ", ".join(f"{symbol} = {MASSES[symbol]}" for symbol in formula)
        question = (
            f"What is the molar mass of {self.formula(formula)} in g/mol? Use {listed}. Reply "
            "with the number alone, in digits."
        )
        return Task(key, (Message("user", question),), formula)

    def formula(self, counts: Mapping[str, int]) -> str:
        """Return a formula as it is written."""
        return "".join(f"{symbol}{number}" for symbol, number in counts.items())

    def mass(self, counts: Mapping[str, int]) -> int:
        """Return the mass of a formula."""
        return sum(MASSES[symbol] * number for symbol, number in counts.items())

    def read(self, text: str) -> int | None:
        """Return the number that a reply consists of, or None."""
        return whole(text)

    def verify(self, task: Task[dict[str, int]], rollout: Rollout) -> Verdict:
        right = self.read(rollout.text) == self.mass(task.data)
        return Verdict({"reward": Reward(right)}, passed=right, answer=rollout.text[:100])

    def reference(self, task: Task[dict[str, int]]) -> str:
        return str(self.mass(task.data))


@dataclass(frozen=True, slots=True)
class Shelf:
    """Holds the batches of a medicine: packs, and how many days they are still good."""

    day: date
    batches: tuple[tuple[int, int], ...]

    @property
    def due(self) -> int:
        """Return the packs that expire within 30 days."""
        return sum(packs for packs, days in self.batches if days <= 30)


class PharmacyShelf(Environment[Shelf]):
    """Asks how many packs expire soon; the reply is a JSON object."""

    max_new_tokens = 24

    def task(self, key: TaskKey) -> Task[Shelf]:
        size = 5 + round(6 * key.level)

        def make(rng: Random) -> Shelf:
            while True:
                day = self.day(rng)
                spans = [rng.choice((rng.randint(1, 26), rng.randint(35, 90))) for _ in range(size)]
                packs = rng.sample(range(11, 90), size)
                shelf = Shelf(day, tuple(zip(packs, spans, strict=True)))
                if sum(span <= 30 for span in spans) >= 2:
                    return shelf

        shelf = of_split(key, make, lambda shelf: f"{shelf.batches}")
        lines = [
            f"- {packs} packs, good until {shelf.day + timedelta(days)}"
            for packs, days in shelf.batches
        ]
        question = "\n".join(
            (
                f"Stock-take on {shelf.day}:",
                *lines,
                "How many packs are no longer good in 31 days, counted from the stock-take? "
                'Reply with JSON, as in {"packs": 5}.',
            )
        )
        return Task(key, (Message("user", question),), shelf)

    def day(self, rng: Random) -> date:
        """Return the day of the stock-take."""
        return date(2019, 1, 1) + timedelta(rng.randrange(2000))

    def verify(self, task: Task[Shelf], rollout: Rollout) -> Verdict:
        found = parse_json(rollout.text, max_chars=200, max_depth=2, max_digits=6)
        value = found.value if found is not None else None
        packs = value.get("packs") if isinstance(value, dict) and len(value) == 1 else None
        right = type(packs) is int and packs == task.data.due
        return Verdict({"reward": Reward(right)}, passed=right, answer=rollout.text[:100])

    def reference(self, task: Task[Shelf]) -> str:
        return f'{{"packs": {task.data.due}}}'


MONTHS = words(
    "January February March April May June July August September October November December"
)


class ColumnOfDates(Environment[tuple[date, ...]]):
    """Asks for a column of dates in ISO form; each row that is right earns its share."""

    max_new_tokens = 160

    def task(self, key: TaskKey) -> Task[tuple[date, ...]]:
        size = 6 + round(6 * key.level)

        def make(rng: Random) -> tuple[date, ...]:
            days = rng.sample(range(20000), size)
            return tuple(date(1970, 1, 1) + timedelta(day) for day in days)

        days = of_split(key, make, lambda days: " ".join(map(str, days)))
        rng = key.rng("forms")
        rows = [self.messy(day, rng.randrange(3)) for day in days]
        question = (
            "Write these dates as YYYY-MM-DD, one a line, in the same order and with nothing "
            "else.\n" + "\n".join(rows)
        )
        return Task(key, (Message("user", question),), days)

    def messy(self, day: date, form: int) -> str:
        """Return a date in one of three forms."""
        month = MONTHS[day.month - 1]
        forms = (
            f"{day.day} {month} {day.year}",
            f"{month} {day.day}, {day.year}",
            f"{day.day}-{month[:3]}-{day.year}",
        )
        return forms[form]

    def marks(self, days: Sequence[date], text: str) -> list[bool]:
        """Return which rows are right; no row is, if there are more or fewer."""
        lines = [line.strip(WHITE) for line in text.strip(WHITE).split("\n")]
        if len(lines) != len(days):
            return [False] * len(days)
        return [line == str(day) for line, day in zip(lines, days, strict=True)]

    def verify(self, task: Task[tuple[date, ...]], rollout: Rollout) -> Verdict:
        marks = self.marks(task.data, rollout.text)
        paid = sum(marks) / len(marks)
        return Verdict({"reward": Reward(paid)}, passed=all(marks), answer=rollout.text[:100])

    def reference(self, task: Task[tuple[date, ...]]) -> str:
        return "\n".join(map(str, task.data))
