"""Sound environments of the kinds E, second part: customs, logs, files, tables, chess, berths."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import date, timedelta
from functools import cached_property
from itertools import product
from typing import Any, ClassVar, Literal

from bases_e_fresh9 import LONGEST, SPACE, drawn, judged

from grpo_core import Environment, Message, Rollout, Task, TaskKey, Verdict, held_out

GOODS = ("lamps", "books", "scarves", "clocks", "cables", "kettles", "rugs", "toys", "lenses")
DUTIABLE = ("bottles of gin", "boxes of cigars", "bottles of rum", "tins of tobacco")
CUSTOMS_RULES = (
    "Name the procedure for a parcel. Spirits and tobacco: excise. Other goods go by their total "
    "value in euros: up to 22 exempt, up to 150 simplified, up to 1000 standard, above formal. "
    "Reply with that one word in lower case."
)
BOUNDS = {"exempt": (1, 22), "simplified": (23, 150), "standard": (151, 1000)}
BOUNDS |= {"formal": (1001, 5000)}


class ParcelProcedure(Environment[str]):
    """Asks for the customs procedure of a parcel; each of five is right equally often."""

    levels: ClassVar[bool] = False

    def parcel(self, rng: random.Random) -> tuple[str, int, int]:
        """Return goods, their number and the price of each."""
        label = rng.choice([*BOUNDS, "excise"])
        low, high = BOUNDS.get(label, (1, 3000))
        number = rng.randint(1, 9 if label != "exempt" else 3)
        price = rng.randint(-(-low // number), high // number)
        return rng.choice(DUTIABLE if label == "excise" else GOODS), number, price

    def task(self, key: TaskKey) -> Task[str]:
        def draw(rng: random.Random) -> tuple[str, tuple[str, str]]:
            goods, number, price = self.parcel(rng)
            value = number * price
            by_value = next((name for name, (_, top) in BOUNDS.items() if value <= top), "formal")
            text = f"Parcel: {number} {goods}, {price} euros each."
            return text, (text, "excise" if goods in DUTIABLE else by_value)

        text, label = drawn(key, draw)
        return Task(key, (Message("system", CUSTOMS_RULES), Message("user", text)), label)

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        reply = rollout.text.strip(SPACE) if len(rollout.text) <= LONGEST else ""
        return judged(self.right(task.data, reply), reply)

    def right(self, label: str, reply: str) -> bool:
        """Return whether the reply names the procedure."""
        return reply == label

    def reference(self, task: Task[str]) -> str:
        return task.data


class FailedRequests(Environment[list[str]]):
    """Asks which requests of a log failed or were slow; longer logs at higher levels."""

    order: ClassVar[str] = "in the order of the log"

    def task(self, key: TaskKey) -> Task[list[str]]:
        lines = 7 + round(7 * key.level)

        def draw(rng: random.Random) -> tuple[str, tuple[str, list[str]]]:
            names = [f"r{number}" for number in rng.sample(range(1000, 9999), lines)]
            bad = set(rng.sample(names, rng.randint(2, 4)))
            rows = []
            for name in names:
                status = rng.choice((200, 201, 204, 304))
                spent = rng.randint(20, 480)
                if name in bad and rng.random() < 0.5:
                    status = rng.choice((500, 502, 503))
                elif name in bad:
                    spent = rng.randint(520, 1900)
                rows.append(f"{name} status {status} after {spent} ms")
            return "\n".join(rows), ("\n".join(rows), [name for name in names if name in bad])

        log, bad = drawn(key, draw)
        question = (
            f"{log}\nWhich requests have a status of 500 or more, or took longer than 500 ms? "
            f"Reply with their names {self.order}, separated by a comma and a space, nothing else."
        )
        return Task(key, (Message("user", question),), bad)

    def verify(self, task: Task[list[str]], rollout: Rollout) -> Verdict:
        reply = rollout.text.strip(SPACE) if len(rollout.text) <= LONGEST else ""
        return judged(self.right(task.data, reply.split(", ")), reply)

    def right(self, bad: list[str], named: list[str]) -> bool:
        """Return whether the names are those of the failed requests."""
        return named == bad

    def reference(self, task: Task[list[str]]) -> str:
        return ", ".join(task.data)


class ShardOfAnOrder(Environment[str]):
    """Asks in which quarter's file an order is kept; data is the day as YYYY-MM-DD."""

    levels: ClassVar[bool] = False

    def task(self, key: TaskKey) -> Task[str]:
        def draw(rng: random.Random) -> tuple[str, tuple[str, date]]:
            day, later = date(2008, 1, 1) + timedelta(rng.randrange(5600)), rng.randint(20, 150)
            text = f"It was placed on {day:%d %B %Y} and shipped {later} days later."
            return text, (text, day + timedelta(later))

        text, day = drawn(key, draw)
        question = (
            "Orders are kept in one file for each quarter in which they were shipped, named like "
            f"orders-1999-q4.csv. {text} Reply with the name of its file and nothing else."
        )
        return Task(key, (Message("user", question),), day.isoformat())

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        reply = rollout.text.strip(SPACE) if len(rollout.text) <= LONGEST else ""
        return judged(self.right(task.data, reply), reply)

    def right(self, day: str, reply: str) -> bool:
        """Return whether the reply names the file of the day."""
        return reply == shard_name(date.fromisoformat(day))

    def reference(self, task: Task[str]) -> str:
        return shard_name(date.fromisoformat(task.data))


def shard_name(day: date) -> str:
    """Return the name of the file of a day's quarter."""
    return f"orders-{day.year}-q{(day.month + 2) // 3}.csv"


PLACES = ("oslo", "riga", "turin", "ghent", "cadiz", "malmo", "trier", "split", "brno", "lyon")
FIELDS = ("place", "year", "roll", "frame")


def photo(rng: random.Random) -> dict[str, str]:
    """Return the fields of a scanned photograph."""
    return {
        "place": rng.choice(PLACES),
        "year": str(rng.randint(1931, 1989)),
        "roll": f"{rng.randint(1, 40)}r",
        "frame": f"{rng.randint(1, 36)}f",
    }


class ScanNaming(Environment[str]):
    """Asks for the pattern by which the files of an archive of photographs are named."""

    levels: ClassVar[bool] = False

    def task(self, key: TaskKey) -> Task[str]:
        def draw(rng: random.Random) -> tuple[str, tuple[list[dict[str, str]], str]]:
            fields = rng.sample(FIELDS, rng.randint(3, 4))
            pattern = rng.choice(("scan", "neg", "img", "print"))
            for field in fields:
                pattern += rng.choice("-_.+") + "{" + field + "}"
            photos = [photo(rng) for _ in range(3)]
            return f"{pattern} {photos}", (photos, pattern)

        photos, pattern = drawn(key, draw)
        lines = "\n".join(
            ", ".join(f"{name} {value}" for name, value in shot.items())
            + f" -> {pattern.format(**shot)}"
            for shot in photos
        )
        question = (
            f"These photographs are named by one pattern:\n{lines}\nReply with the pattern and "
            "nothing else: the name with each field in braces, as in a Python format string."
        )
        return Task(key, (Message("user", question),), pattern)

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        reply = rollout.text.strip(SPACE) if len(rollout.text) <= LONGEST else ""
        return judged(self.right(task, reply), reply)

    def right(self, task: Task[str], reply: str) -> bool:
        """Return whether the reply is the pattern."""
        return reply == task.data

    def reference(self, task: Task[str]) -> str:
        return task.data


SCOPES = tuple(a + b for a, b in product(("Al", "Ve", "Or", "Ny", "Ce"), ("tis", "mor", "dax")))
SCOPES += tuple(a + b for a, b in product(("Bri", "Sol", "Hu", "Ka", "Ty"), ("lo", "ren", "vik")))
Scope = tuple[str, int, int]


class ScopeOfATable(Environment[dict[str, Any]]):
    """Asks which telescope of a table meets two demands; more rows at higher levels."""

    answer_in_prompt: ClassVar[bool] = True

    def task(self, key: TaskKey) -> Task[dict[str, Any]]:
        size = 4 + round(3 * key.level)

        def draw(rng: random.Random) -> tuple[str, tuple[str, dict[str, Any]]]:
            while True:
                names = rng.sample(SCOPES, size)
                rows = [(name, rng.randint(60, 400), rng.randint(300, 2800)) for name in names]
                wide, short = rng.randint(100, 350), rng.randint(600, 2400)
                fit = [name for name, width, focal in rows if width >= wide and focal <= short]
                if len(fit) == 1:
                    break
            lines = "\n".join(f"{name}: {width} mm, focal {long} mm" for name, width, long in rows)
            text = f"{lines}\nWhich one has at least {wide} mm and a focal length up to {short} mm?"
            data = {"rows": rows, "wide": wide, "short": short, "name": fit[0]}
            return text, (text, data)

        text, data = drawn(key, draw)
        question = f"Telescopes, by aperture and focal length:\n{text} Reply with its name only."
        return Task(key, (Message("user", question),), data)

    def verify(self, task: Task[dict[str, Any]], rollout: Rollout) -> Verdict:
        reply = rollout.text.strip(SPACE) if len(rollout.text) <= LONGEST else ""
        return judged(self.right(task.data, reply), reply)

    def right(self, data: dict[str, Any], reply: str) -> bool:
        """Return whether the reply names the telescope that fits."""
        return bool(reply == data["name"])

    def reference(self, task: Task[dict[str, Any]]) -> str:
        return str(task.data["name"])


SQUARES = tuple(f"{file}{rank}" for file, rank in product("abcdefgh", range(1, 9)))


def knight_moves(square: str) -> set[str]:
    """Return the squares that a knight reaches on a chess board."""
    steps = [(1, 2), (2, 1), (-1, 2), (-2, 1), (1, -2), (2, -1), (-1, -2), (-2, -1)]
    file, rank = ord(square[0]), int(square[1])
    return {f"{chr(file + x)}{rank + y}" for x, y in steps} & set(SQUARES)


class KnightByWayOf(Environment[list[str]]):
    """Asks over which square a knight gets somewhere in two moves; data holds what is right."""

    levels: ClassVar[bool] = False

    def trip(self, rng: random.Random) -> tuple[str, str, list[str]]:
        """Return start, goal and the squares between them, of which there are at least two."""
        while True:
            start, goal = rng.sample(SQUARES, 2)
            between = sorted(knight_moves(start) & knight_moves(goal))
            if len(between) > 1:
                return start, goal, between

    def choose(self, rng: random.Random) -> tuple[str, tuple[str, str, list[str]]]:
        """Return the text that decides on the split, and the trip."""
        start, goal, between = self.trip(rng)
        return f"{start} {goal}", (start, goal, between)

    def task(self, key: TaskKey) -> Task[list[str]]:
        start, goal, between = drawn(key, self.choose)
        question = (
            f"A knight stands on {start} of an empty chess board. It wants to be on "
            f"{goal} after two moves. Name a square over which it can go, and nothing else."
        )
        return Task(key, (Message("user", question),), between)

    def verify(self, task: Task[list[str]], rollout: Rollout) -> Verdict:
        reply = rollout.text.strip(SPACE) if len(rollout.text) <= LONGEST else ""
        return judged(reply in task.data, reply)

    def reference(self, task: Task[list[str]]) -> str:
        return task.data[0]


RATES = {
    ("east", "winter"): 3, ("east", "spring"): 5, ("east", "summer"): 8,
    ("west", "winter"): 2, ("west", "spring"): 4, ("west", "summer"): 7,
    ("north", "winter"): 4, ("north", "spring"): 6, ("north", "summer"): 11,
}  # fmt: skip
BERTH_RULES = (
    "Fees of the marina for each metre and night, in winter, spring and summer: east pier 3, 5, 8; "
    "west pier 2, 4, 7; north pier 4, 6, 11. Reply with the whole fee as a number only."
)
Berth = tuple[str, str, int, int]


class BerthFees(Environment[int]):
    """Asks for the fee of a berth; each row of a fixed list is one task."""

    levels: ClassVar[bool] = False

    @cached_property
    def rows(self) -> dict[str, list[Berth]]:
        """Return the rows of each split, in an order that is always the same."""
        rows = [(*kind, length, nights) for kind in RATES for length in range(6, 19)
                for nights in (2, 3, 4, 5, 9, 14)]  # fmt: skip
        random.Random("berths").shuffle(rows)
        parts: dict[str, list[Berth]] = {"train": [], "eval": []}
        for row in rows:
            parts["eval" if held_out(self.question(row), 0.25) else "train"].append(row)
        return parts

    def size(self, split: Literal["train", "eval"]) -> int:
        return len(self.rows[split])

    def question(self, row: Berth) -> str:
        """Return what is asked about a row."""
        pier, season, length, nights = row
        return f"A boat of {length} metres lies at the {pier} pier for {nights} nights in {season}."

    def task(self, key: TaskKey) -> Task[int]:
        row = self.rows[key.split][key.index]
        prompt = (Message("system", BERTH_RULES), Message("user", self.question(row)))
        return Task(key, prompt, RATES[row[:2]] * row[2] * row[3])

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        reply = rollout.text.strip(SPACE) if len(rollout.text) <= LONGEST else ""
        return judged(reply == str(task.data), reply)

    def reference(self, task: Task[int]) -> str:
        return str(task.data)

    def cheats(self, task: Task[int]) -> Sequence[str]:
        return (f"{task.data} or {task.data + 1}",)
