"""Sound environments with dates, notes, lists and plans as answers."""

from collections.abc import Sequence
from datetime import date, timedelta
from itertools import pairwise
from random import Random
from typing import Any, ClassVar

from bases_h_fresh10 import BLANK, ask, draw, paid

from grpo_core import Environment, Reward, Rollout, Task, TaskKey, Verdict
from grpo_core.extract import parse_integer, xml_tag


class PensionersOfAParish(Environment[int]):
    """Asks for somebody's age at the end of a year, by the year of birth."""

    levels = False
    max_new_tokens = 8
    names: ClassVar[tuple[str, ...]] = ("Agnes", "Tomasz", "Ruth", "Emeka", "Ingrid", "Paulo")

    def task(self, key: TaskKey) -> Task[int]:
        name, born = draw(key, lambda rng: (rng.choice(self.names), rng.randint(1921, 1999)), str)
        year = key.rng("year").randint(2002, 2024)
        prompt = (
            f"The parish book says that {name} was born on 3 May {born}. How old is {name} at the "
            f"end of {year}? Reply with the number of years alone."
        )
        return ask(key, prompt, year - born)

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        answer = parse_integer(rollout.text, max_digits=4)
        return paid(answer == task.data, None if answer is None else str(answer))

    def reference(self, task: Task[int]) -> str:
        return str(task.data)


class DaysToTheLaunch(Environment[tuple[str, str]]):
    """Asks how many days lie between two dates; data are both dates."""

    levels = False
    max_new_tokens = 8

    def task(self, key: TaskKey) -> Task[tuple[str, str]]:
        today, goal = draw(key, self.dates, str)
        prompt = (
            f"Today is {today}. A satellite is launched on {goal}. How many days are left until "
            "then? Reply with the number alone."
        )
        return ask(key, prompt, (today, goal))

    def dates(self, rng: Random) -> tuple[str, str]:
        """Return a day and a later one."""
        day = date(2027, 1, 1) + timedelta(rng.randrange(3000))
        return day.isoformat(), (day + timedelta(rng.randint(40, 900))).isoformat()

    def left(self, data: tuple[str, str]) -> int:
        """Return the days that are left."""
        return (date.fromisoformat(data[1]) - date.fromisoformat(data[0])).days

    def verify(self, task: Task[tuple[str, str]], rollout: Rollout) -> Verdict:
        answer = parse_integer(rollout.text, max_digits=5)
        return paid(answer == self.left(task.data), None if answer is None else str(answer))

    def reference(self, task: Task[tuple[str, str]]) -> str:
        return str(self.left(task.data))


class NotesAbove(Environment[frozenset[str]]):
    """Asks for the note some semitones above another; a black key has two names."""

    levels = False
    max_new_tokens = 8
    scale: ClassVar[tuple[str, ...]] = (
        "C", "C#/Db", "D", "D#/Eb", "E", "F", "F#/Gb", "G", "G#/Ab", "A", "A#/Bb", "B",
    )  # fmt: skip

    def task(self, key: TaskKey) -> Task[frozenset[str]]:
        start, steps = draw(
            key,
            lambda rng: (rng.choice((0, 2, 4, 5, 7, 9, 11)), rng.randint(1, 80)),
            lambda pair: f"{pair[0]} {pair[1] + pair[1] // 12}",
        )
        steps += (steps - 1) // 11  # no whole number of octaves
        prompt = (
            f"One piano key is {steps} semitones above a key that plays {self.scale[start]}. What "
            "is its note called? Reply with the name alone, a capital letter and # or b if needed."
        )
        return ask(key, prompt, frozenset(self.scale[(start + steps) % 12].split("/")))

    def verify(self, task: Task[frozenset[str]], rollout: Rollout) -> Verdict:
        text = rollout.text.strip(BLANK)[:20]
        return paid(self.same(text, task.data), text)

    def same(self, text: str, names: frozenset[str]) -> bool:
        """Return whether a reply is a name of the note."""
        return text in names

    def reference(self, task: Task[frozenset[str]]) -> str:
        return min(task.data)


class BeadsTurnedRound(Environment[list[str]]):
    """Asks for a string of beads in another order, and pays for each bead at its place."""

    levels = False
    max_new_tokens = 64
    colours: ClassVar[tuple[str, ...]] = (
        "amber", "black", "coral", "denim", "ebony", "fawn", "green", "hazel", "ivory", "jade",
        "khaki", "lilac", "mauve", "navy",
    )  # fmt: skip

    def task(self, key: TaskKey) -> Task[list[str]]:
        beads, turn = draw(key, self.string, str)
        prompt = (
            f"Beads on a string: {', '.join(beads)}. Take the first {turn} off and thread them on "
            "again at the end, one by one in the same order. Then read the string from its end to "
            "its start. Reply with one line `Order: ` and the colours, a comma and a space between "
            "two."
        )
        return ask(key, prompt, (beads[turn:] + beads[:turn])[::-1])

    def string(self, rng: Random) -> tuple[list[str], int]:
        """Return beads, now and then six of them, and how many change their place."""
        count = 6 if rng.random() < 0.07 else 5
        return rng.sample(self.colours, count), rng.randint(1, 3)

    def verify(self, task: Task[list[str]], rollout: Rollout) -> Verdict:
        beads = self.read(rollout.text)
        if beads is None or sorted(beads) != sorted(task.data):
            return paid(False)
        hits = sum(one == other for one, other in zip(beads, task.data, strict=True))
        right = hits == len(task.data)
        value = self.worth(hits, len(task.data))
        return Verdict({"reward": Reward(value)}, passed=right, answer=", ".join(beads))

    def worth(self, hits: int, count: int) -> float:
        """Return the reward for beads at their place."""
        return 1.0 if hits == count else 0.5 * hits / count

    def read(self, text: str) -> list[str] | None:
        """Return the colours of a reply, or None."""
        line = text.strip(BLANK)
        if len(line) > 200 or not line.startswith("Order: "):
            return None
        return line.removeprefix("Order: ").split(", ")

    def reference(self, task: Task[list[str]]) -> str:
        return "Order: " + ", ".join(task.data)


class FinishOfTheRelay(Environment[list[str]]):
    """Asks in what order runners came in, by clues on neighbours; a sentence is the answer."""

    levels = False
    max_new_tokens = 48
    runners: ClassVar[tuple[str, ...]] = (
        "Abebe", "Bruna", "Chloe", "Dario", "Elif", "Femi", "Greta", "Hana", "Imran", "Jonas",
        "Kofi", "Lena",
    )  # fmt: skip

    def task(self, key: TaskKey) -> Task[list[str]]:
        order = draw(key, lambda rng: self.field(rng), " ".join)
        clues = [f"{one} came in just before {two}." for one, two in pairwise(order)]
        key.rng("clues").shuffle(clues)
        prompt = (
            " ".join(clues) + " In what order did they come in? Reply with the names from first to "
            "last, a comma and a space between two, and a full stop at the end."
        )
        return ask(key, prompt, order)

    def field(self, rng: Random) -> Any:
        """Return runners in the order in which they came in."""
        return rng.sample(self.runners, 5)

    def verify(self, task: Task[list[str]], rollout: Rollout) -> Verdict:
        names = self.read(rollout.text.strip(BLANK))
        return paid(names == task.data, ", ".join(names or ())[:100])

    def read(self, text: str) -> list[str] | None:
        """Return the names of a sentence, or None."""
        if len(text) > 200 or not text.endswith("."):
            return None
        return text[:-1].split(", ")

    def reference(self, task: Task[list[str]]) -> str:
        return ", ".join(task.data) + "."


class AllergensOfADish(Environment[list[str]]):
    """Asks which allergens a dish has; pays for the whole list, and for a part of it."""

    levels = False
    max_new_tokens = 64
    parts: ClassVar[dict[str, float]] = {"exact": 0.6, "overlap": 0.4}
    table: ClassVar[dict[str, str]] = {
        "tahini": "sesame", "couscous": "gluten", "ghee": "milk", "tofu": "soy",
        "prawn": "shellfish", "marzipan": "nuts", "mayonnaise": "egg", "anchovy": "fish",
        "satay": "peanut", "celeriac": "celery", "dijon": "mustard", "riesling": "sulphite",
    }  # fmt: skip
    harmless: ClassVar[tuple[str, ...]] = ("rice", "leek", "lemon", "thyme", "carrot", "apple")

    def task(self, key: TaskKey) -> Task[list[str]]:
        things, plain = draw(
            key,
            lambda rng: (rng.sample(tuple(self.table), rng.randint(3, 4)),
                         rng.sample(self.harmless, 2)),
            str,
        )  # fmt: skip
        listed = things + plain
        key.rng("order").shuffle(listed)
        known = ", ".join(sorted(self.table.values()))
        prompt = (
            f"A dish has: {', '.join(listed)}. Which of these allergens must its label name: "
            f"{known}? Reply with their names in <allergens>...</allergens>, a comma between two, "
            "in any order. Each thing has at most one."
        )
        return ask(key, prompt, [self.table[thing] for thing in things])

    def verify(self, task: Task[list[str]], rollout: Rollout) -> Verdict:
        block = xml_tag(rollout.text, tag="allergens")
        text = block.content if block is not None and len(block.content) <= 300 else ""
        named = [name.strip(BLANK) for name in text.split(",")] if text.strip(BLANK) else []
        if len(set(named)) != len(named):
            named = []
        right = sorted(named) == sorted(task.data)
        exact, overlap = self.worth(named, task.data)
        rewards = {"exact": Reward(exact), "overlap": Reward(overlap)}
        return Verdict(rewards, passed=right, answer=", ".join(named))

    def worth(self, named: Sequence[str], right: Sequence[str]) -> tuple[float, float]:
        """Return the values of both parts: a wrong name costs as much as a right one earns."""
        hits = len(set(named) & set(right))
        overlap = max(0, 2 * hits - len(named)) / len(right)
        return float(sorted(named) == sorted(right)), overlap

    def reference(self, task: Task[list[str]]) -> str:
        return f"<allergens>{', '.join(task.data)}</allergens>"


class SwapsOfCrates(Environment[list[int]]):
    """Asks for swaps that put crates in order; any that do and are few enough are right."""

    levels = False
    max_new_tokens = 64

    def task(self, key: TaskKey) -> Task[list[int]]:
        row = draw(key, self.row, str)
        prompt = (
            f"Crates stand in a row with these weights: {' '.join(map(str, row))}. Put them in "
            f"rising order by at most {len(row)} swaps of two places. Places count from 1. Reply "
            "with the swaps in their order, such as `1-4 2-3`."
        )
        return ask(key, prompt, row)

    def row(self, rng: Random) -> list[int]:
        """Return weights out of order."""
        while True:
            row = rng.sample(range(10, 99), rng.randint(5, 6))
            if sum(one != two for one, two in zip(row, sorted(row), strict=True)) >= 4:
                return row

    def moved(self, row: Sequence[int], text: str) -> list[int] | None:
        """Return the row after the swaps of a reply; None if it is not made of a few swaps."""
        result = list(row)
        swaps = text.strip(BLANK).split(" ") if len(text) <= 200 else []
        if not 1 <= len(swaps) <= len(row):
            return None
        for swap in swaps:
            places = swap.split("-")
            if len(places) != 2 or any(
                len(place) != 1 or place not in "123456789"[: len(row)] for place in places
            ):
                return None
            one, two = (int(place) - 1 for place in places)
            result[one], result[two] = result[two], result[one]
        return result

    def verify(self, task: Task[list[int]], rollout: Rollout) -> Verdict:
        moved = self.moved(task.data, rollout.text)
        return paid(moved == sorted(task.data), rollout.text[:100])

    def reference(self, task: Task[list[int]]) -> str:
        row, swaps = list(task.data), []
        for place, weight in enumerate(sorted(row)):
            other = row.index(weight)
            if other != place:
                row[place], row[other] = row[other], row[place]
                swaps.append(f"{place + 1}-{other + 1}")
        return " ".join(swaps)
