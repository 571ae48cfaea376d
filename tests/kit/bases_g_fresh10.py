"""Sound environments: gears, titration, sites in DNA, musical intervals, seats and grids."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from fractions import Fraction

from grpo_core import Environment, Message, Reward, Rollout, Task, TaskKey, Verdict, held_out
from grpo_core.extract import parse_json, xml_tag

WHITE = " \t\r\n"


def chat(key: TaskKey, rules: str, question: str, data: object) -> Task:
    """Return a task with a system message and a user's message."""
    return Task(key, (Message("system", rules), Message("user", question)), data)


def judged(right: bool, answer: str | None) -> Verdict:
    """Return the verdict of an answer that is either right or not."""
    return Verdict({"reward": Reward(float(right))}, passed=right, answer=answer)


def wanted(key: TaskKey, text: str) -> bool:
    """Return whether what a task asks belongs to the split of its key."""
    return held_out(text) == (key.split == "eval")


@dataclass(frozen=True)
class Gears:
    """Holds the pairs of driving and driven wheels, and the speed of the motor."""

    pairs: tuple[tuple[int, int], ...]
    motor: int
    answer: int


class GearTrain(Environment[Gears]):
    """Asks how fast the last wheel of a gear train turns; the reply is the number alone."""

    max_new_tokens = 16
    rules = "You check gearboxes. Reply with the speed in rpm, a whole number and nothing else."

    def task(self, key: TaskKey) -> Task[Gears]:
        rng = key.rng()
        while True:
            gears = self.draw(rng, 1 + round(2 * key.level))
            question = self.question(gears)
            if 12 <= gears.answer <= 9000 and gears.motor < 9000 and wanted(key, question):
                return chat(key, self.rules, question, gears)

    def draw(self, rng: random.Random, stages: int) -> Gears:
        """Return a train whose last wheel turns at a whole number of rpm."""
        pairs = tuple((rng.randint(8, 40), rng.randint(10, 90)) for _ in range(stages))
        ratio = Fraction(1)
        for driver, driven in pairs:
            ratio *= Fraction(driver, driven)
        factor = rng.randint(2, 60)
        return Gears(pairs, ratio.denominator * factor, ratio.numerator * factor)

    def question(self, gears: Gears) -> str:
        """Return the words of the task."""
        steps = "; on its shaft sits ".join(
            f"a wheel of {driver} teeth that drives one of {driven} teeth"
            for driver, driven in gears.pairs
        )
        return f"The motor runs at {gears.motor} rpm. It carries {steps}. How fast is the last one?"

    def verify(self, task: Task[Gears], rollout: Rollout) -> Verdict:
        text = rollout.text.strip(WHITE)
        return judged(text == str(task.data.answer), text[:40])

    def reference(self, task: Task[Gears]) -> str:
        return str(task.data.answer)


@dataclass(frozen=True)
class Burette:
    """Holds a titration; the answer is a volume with one decimal place."""

    question: str
    answer: str


class Titration(Environment[Burette]):
    """Asks for the volume of lye that neutralises an acid; the answer stands in <ml>."""

    max_new_tokens = 64
    rules = "Reply with <ml>V</ml>, where V is the volume in mL to exactly one decimal place."

    def task(self, key: TaskKey) -> Task[Burette]:
        rng = key.rng()
        while True:
            tenths, blank = rng.randint(60, 480), rng.randint(1, 9) if key.level >= 0.5 else 0
            lye = Fraction(rng.choice((5, 8, 10, 20, 25, 40, 50)), 100)
            acid, protons = rng.choice((10, 20, 25, 40, 50)), rng.choice((1, 2, 3))
            strength = Fraction(tenths, 10) * lye / (acid * protons)
            if 10000 % strength.denominator:
                continue
            question = (
                f"{acid} mL of an acid with {protons} acidic proton(s) per molecule, at "
                f"{float(strength):g} mol/L, are titrated to the end with sodium hydroxide of "
                f"{float(lye):g} mol/L."
            )
            if blank:
                question += f" The blank takes another 0.{blank} mL, which come on top."
            total = tenths + blank
            answer = f"{total // 10}.{total % 10}"
            if wanted(key, question) and answer not in question:
                return chat(
                    key,
                    self.rules,
                    f"{question} What does the burette show?",
                    Burette(question, answer),
                )

    def verify(self, task: Task[Burette], rollout: Rollout) -> Verdict:
        block = xml_tag(rollout.text, tag="ml")
        given = "" if block is None else block.content.strip(WHITE)
        return judged(given == task.data.answer, given[:40])

    def reference(self, task: Task[Burette]) -> str:
        return f"<ml>{task.data.answer}</ml>"


@dataclass(frozen=True)
class Strand:
    """Holds a strand of DNA, a site, and where it begins."""

    strand: str
    site: str
    places: tuple[int, ...]


class SiteFinder(Environment[Strand]):
    """Asks where a restriction site occurs in a strand; the reply is a JSON list of places."""

    max_new_tokens = 48
    rules = "Reply with a JSON list of all places where the site begins, counted from 1, in order."

    def task(self, key: TaskKey) -> Task[Strand]:
        rng = key.rng()
        while True:
            count = self.draw_count(rng)
            site = "".join(rng.choice("ACGT") for _ in range(4))
            letters = [rng.choice("ACGT") for _ in range(24 + round(40 * key.level))]
            for _ in range(count):
                place = rng.randrange(len(letters) - 3)
                letters[place : place + 4] = site
            strand = "".join(letters)
            places = tuple(i + 1 for i in range(len(strand)) if strand.startswith(site, i))
            if len(places) == count and wanted(key, f"{strand} {site}"):
                question = f"Strand: {strand}\nSite: {site}"
                return chat(key, self.rules, question, Strand(strand, site, places))

    def draw_count(self, rng: random.Random) -> int:
        """Return how often the site shall occur."""
        return rng.randint(1, 3)

    def verify(self, task: Task[Strand], rollout: Rollout) -> Verdict:
        text = rollout.text.strip(WHITE)
        found = parse_json(text, max_chars=400)
        places = found.value if found is not None else None
        right = (
            isinstance(places, list)
            and all(type(place) is int for place in places)
            and tuple(places) == task.data.places
        )
        return judged(right, text[:80])

    def reference(self, task: Task[Strand]) -> str:
        return str(list(task.data.places))


LETTERS = "CDEFGAB"
STEPS = (0, 2, 4, 5, 7, 9, 11)
SIGNS = {"": 0, "#": 1, "b": -1}
NAMES = ("unison", "second", "third", "fourth", "fifth", "sixth", "seventh", "octave")


def interval_name(letters: int, semitones: int) -> str | None:
    """Return the name of an interval upwards; None for one with two or more alterations."""
    octave, degree = divmod(letters, 7)
    change = semitones - 12 * octave - STEPS[degree]
    if degree in (0, 3, 4):
        quality = {-1: "diminished", 0: "perfect", 1: "augmented"}.get(change)
    else:
        quality = {-2: "diminished", -1: "minor", 0: "major", 1: "augmented"}.get(change)
    return None if quality is None else f"{quality} {NAMES[letters]}"


@dataclass(frozen=True)
class Notes:
    """Holds two notes and the name of the interval between them."""

    low: str
    high: str
    answer: str


class IntervalNames(Environment[Notes]):
    """Asks for the interval between two written notes; it is the last line of the reply."""

    max_new_tokens = 64
    rules = "Name the interval. End with a line such as 'Interval: minor third'."

    def task(self, key: TaskKey) -> Task[Notes]:
        rng = key.rng()
        while True:
            notes = self.draw(rng, key.level)
            if notes is not None and wanted(key, f"{notes.low} to {notes.high}"):
                question = f"Which interval is it from {notes.low} up to {notes.high}?"
                return chat(key, self.rules, question, notes)

    def draw(self, rng: random.Random, level: float) -> Notes | None:
        """Return two notes; with a higher level there are flats, too."""
        signs = ("", "#", "b") if level >= 0.5 else ("", "#")
        start, letters, octave = rng.randrange(7), rng.randint(1, 7), rng.randint(2, 5)
        return self.between(start, letters, octave, rng.choice(signs), rng.choice(signs))

    def between(
        self, start: int, letters: int, octave: int, first: str, second: str
    ) -> Notes | None:
        """Return the notes with the name of their interval; None if it has no common name."""
        carry, end = divmod(start + letters, 7)
        semitones = 12 * carry + STEPS[end] + SIGNS[second] - STEPS[start] - SIGNS[first]
        name = interval_name(letters, semitones)
        low, high = f"{LETTERS[start]}{first}{octave}", f"{LETTERS[end]}{second}{octave + carry}"
        return None if name is None else Notes(low, high, name)

    def verify(self, task: Task[Notes], rollout: Rollout) -> Verdict:
        line = rollout.text.strip(WHITE).rpartition("\n")[2].strip(WHITE)
        match = re.fullmatch("Interval: ([a-z]{5,12} [a-z]{5,8})", line, re.ASCII)
        answer = match.group(1) if match else None
        return judged(answer == task.data.answer, answer)

    def reference(self, task: Task[Notes]) -> str:
        return f"Interval: {task.data.answer}"


PARTIES = (
    "Harbour Union",
    "Green Valley",
    "Old Town List",
    "Free Farmers",
    "Civic Forum",
    "Mill Street",
    "Pensioners",
    "Young Voices",
    "Lake Party",
    "Railway Labour",
    "North Bank",
    "Orchard League",
)


@dataclass(frozen=True)
class Poll:
    """Holds the votes of the parties, and the seats that they get."""

    votes: tuple[tuple[str, int], ...]
    seats: int
    shares: tuple[tuple[str, int], ...]


def divide_seats(votes: tuple[tuple[str, int], ...], seats: int) -> dict[str, int] | None:
    """Return the seats by the method of D'Hondt; None if two quotients are equal."""
    quotients = sorted(
        ((Fraction(count, n), name) for name, count in votes for n in range(1, seats + 1)),
        reverse=True,
    )
    if quotients[seats - 1][0] == quotients[seats][0]:
        return None
    won = [name for _, name in quotients[:seats]]
    return {name: won.count(name) for name, _ in votes}


class SeatShares(Environment[Poll]):
    """Asks for the seats of a council by the method of D'Hondt, as a JSON object."""

    max_new_tokens = 128
    parties = 3
    rules = "Use the method of D'Hondt. Reply with a JSON object: the seats of every party by name."

    def task(self, key: TaskKey) -> Task[Poll]:
        rng = key.rng()
        while True:
            names = rng.sample(PARTIES, self.parties + round(2 * key.level))
            votes = tuple((name, rng.randint(200, 9000)) for name in names)
            seats = rng.randint(5, 9) + round(8 * key.level)
            shares = divide_seats(votes, seats)
            lines = "\n".join(f"{name}: {count} votes" for name, count in votes)
            if shares is not None and wanted(key, f"{lines} {seats}"):
                data = Poll(votes, seats, tuple(shares.items()))
                return self.made(key, f"The council has {seats} seats.\n{lines}", data)

    def made(self, key: TaskKey, question: str, data: Poll) -> Task[Poll]:
        """Return the task of a question."""
        return chat(key, self.rules, question, data)

    def verify(self, task: Task[Poll], rollout: Rollout) -> Verdict:
        text = rollout.text.strip(WHITE)
        found = parse_json(text, max_chars=1000)
        shares = found.value if found is not None else None
        right = (
            isinstance(shares, dict)
            and all(type(count) is int for count in shares.values())
            and shares == dict(task.data.shares)
        )
        return judged(right, text[:200])

    def reference(self, task: Task[Poll]) -> str:
        items = ", ".join(f'"{name}": {count}' for name, count in task.data.shares)
        return "{" + items + "}"
