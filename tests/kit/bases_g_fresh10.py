"""Sound environments: gears, titration, sites in DNA, musical intervals, seats and grids."""

import json
import random
import re
from fractions import Fraction
from typing import Any, ClassVar, NamedTuple

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


def last_line(text: str) -> str:
    """Return the last line of a reply."""
    return text.strip(WHITE).rpartition("\n")[2].strip(WHITE)


class Draft(NamedTuple):
    """A question with what its task holds."""

    question: str
    data: Any
    name: str = ""
    """What decides the split; "": the question does."""


class Asked(Environment[Any]):
    """Draws questions until one belongs to the split; the reply is the right text alone."""

    rules: ClassVar[str]
    shown: ClassVar[int] = 40
    """How much of an answer the verdict shows."""

    def task(self, key: TaskKey) -> Task[Any]:
        rng = self.generator(key)
        while True:
            draft = self.draw(rng, key.level)
            if draft is not None and wanted(key, draft.name or draft.question):
                return self.made(key, draft.question, draft.data)

    def generator(self, key: TaskKey) -> random.Random:
        """Return the generator of a task."""
        return key.rng()

    def draw(self, rng: random.Random, level: float) -> Draft | None:
        """Return a question, or None if what was drawn makes none."""
        raise NotImplementedError

    def made(self, key: TaskKey, question: str, data: Any) -> Task[Any]:
        """Return the task of a question."""
        return chat(key, self.rules, question, data)

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        given = self.given(rollout.text)
        return judged(given == self.right(task.data), given and given[: self.shown])

    def given(self, text: str) -> str | None:
        """Return the answer of a reply, or None."""
        return text.strip(WHITE)

    def right(self, data: Any) -> str:
        """Return the right answer."""
        return str(data)

    def reference(self, task: Task[Any]) -> Any:
        return self.written(self.right(task.data))

    def written(self, answer: str) -> str:
        """Return a reply with an answer."""
        return answer


class Tagged(Asked):
    """The answer stands in the only block of a tag."""

    tag: ClassVar[str]

    def given(self, text: str) -> str | None:
        block = xml_tag(text, tag=self.tag)
        return None if block is None else block.content.strip(WHITE)

    def written(self, answer: str) -> str:
        return f"<{self.tag}>{answer}</{self.tag}>"


class LastLine(Asked):
    """The answer stands behind a mark in the last line, and has a certain form."""

    mark: ClassVar[str]
    form: ClassVar[str]

    def given(self, text: str) -> str | None:
        match = re.fullmatch(f"{self.mark}({self.form})", last_line(text), re.ASCII)
        return match[1] if match else None

    def written(self, answer: str) -> str:
        return f"{self.mark}{answer}"


class GearTrain(Asked):
    """Asks how fast the last wheel of a gear train turns; the reply is the number alone."""

    max_new_tokens = 16
    rules = "You check gearboxes. Reply with the speed in rpm, a whole number and nothing else."

    def draw(self, rng: random.Random, level: float) -> Draft | None:
        stages = 1 + round(2 * level)
        pairs = [(rng.randint(8, 40), rng.randint(10, 90)) for _ in range(stages)]
        ratio = Fraction(1)
        for driver, driven in pairs:
            ratio *= Fraction(driver, driven)
        factor = rng.randint(2, 60)
        motor, answer = ratio.denominator * factor, ratio.numerator * factor
        steps = "; on its shaft sits ".join(
            f"a wheel of {driver} teeth that drives one of {driven} teeth"
            for driver, driven in pairs
        )
        question = f"The motor runs at {motor} rpm. It carries {steps}. How fast is the last one?"
        return Draft(question, answer) if 12 <= answer <= 9000 and motor < 9000 else None


class Titration(Tagged):
    """Asks for the volume of lye that neutralises an acid; the answer stands in <ml>."""

    max_new_tokens = 64
    rules = "Reply with <ml>V</ml>, where V is the volume in mL to exactly one decimal place."
    tag = "ml"

    def draw(self, rng: random.Random, level: float) -> Draft | None:
        tenths, blank = rng.randint(60, 480), rng.randint(1, 9) if level >= 0.5 else 0
        lye = Fraction(rng.choice((5, 8, 10, 20, 25, 40, 50)), 100)
        acid, protons = rng.choice((10, 20, 25, 40, 50)), rng.choice((1, 2, 3))
        strength = Fraction(tenths, 10) * lye / (acid * protons)
        question = (
            f"{acid} mL of an acid with {protons} acidic proton(s) per molecule, at "
            f"{float(strength):g} mol/L, are titrated to the end with sodium hydroxide of "
            f"{float(lye):g} mol/L."
        )
        if blank:
            question += f" The blank takes another 0.{blank} mL, which come on top."
        total = tenths + blank
        answer = f"{total // 10}.{total % 10}"
        if 10000 % strength.denominator or answer in question:
            return None
        return Draft(f"{question} What does the burette show?", answer, question)

    def given(self, text: str) -> str | None:
        return super().given(text) or ""


class SiteFinder(Asked):
    """Asks where a restriction site occurs in a strand; the reply is a JSON list of places."""

    max_new_tokens = 48
    rules = "Reply with a JSON list of all places where the site begins, counted from 1, in order."

    def draw(self, rng: random.Random, level: float) -> Draft | None:
        count = self.draw_count(rng)
        site = "".join(rng.choice("ACGT") for _ in range(4))
        letters = [rng.choice("ACGT") for _ in range(24 + round(40 * level))]
        for _ in range(count):
            place = rng.randrange(len(letters) - 3)
            letters[place : place + 4] = site
        strand = "".join(letters)
        places = [i + 1 for i in range(len(strand)) if strand.startswith(site, i)]
        if len(places) != count:
            return None
        return Draft(f"Strand: {strand}\nSite: {site}", places, f"{strand} {site}")

    def draw_count(self, rng: random.Random) -> int:
        """Return how often the site shall occur."""
        return rng.randint(1, 3)

    def verify(self, task: Task[list[int]], rollout: Rollout) -> Verdict:
        text = rollout.text.strip(WHITE)
        found = parse_json(text, max_chars=400)
        places = found.value if found is not None else None
        right = (
            isinstance(places, list)
            and all(type(place) is int for place in places)
            and places == task.data
        )
        return judged(right, text[:80])


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


class IntervalNames(LastLine):
    """Asks for the interval between two written notes; it is the last line of the reply."""

    max_new_tokens = 64
    rules = "Name the interval. End with a line such as 'Interval: minor third'."
    mark = "Interval: "
    form = "[a-z]{5,12} [a-z]{5,8}"

    def draw(self, rng: random.Random, level: float) -> Draft | None:
        """Return two notes; with a higher level there are flats, too."""
        signs = ("", "#", "b") if level >= 0.5 else ("", "#")
        start, letters, octave = rng.randrange(7), rng.randint(1, 7), rng.randint(2, 5)
        return self.between(start, letters, octave, rng.choice(signs), rng.choice(signs))

    def between(
        self, start: int, letters: int, octave: int, first: str, second: str
    ) -> Draft | None:
        """Return the question for two notes; None if their interval has no common name."""
        carry, end = divmod(start + letters, 7)
        semitones = 12 * carry + STEPS[end] + SIGNS[second] - STEPS[start] - SIGNS[first]
        name = interval_name(letters, semitones)
        low, high = f"{LETTERS[start]}{first}{octave}", f"{LETTERS[end]}{second}{octave + carry}"
        question = f"Which interval is it from {low} up to {high}?"
        return None if name is None else Draft(question, name, f"{low} to {high}")


PARTIES = (
    "Harbour Union,Green Valley,Old Town List,Free Farmers,Civic Forum,Mill Street,Pensioners,"
    "Young Voices,Lake Party,Railway Labour,North Bank,Orchard League"
)


def divide_seats(votes: list[tuple[str, int]], seats: int) -> dict[str, int] | None:
    """Return the seats by the method of D'Hondt; None if two quotients are equal."""
    quotients = sorted(
        ((Fraction(count, n), name) for name, count in votes for n in range(1, seats + 1)),
        reverse=True,
    )
    if quotients[seats - 1][0] == quotients[seats][0]:
        return None
    won = [name for _, name in quotients[:seats]]
    return {name: won.count(name) for name, _ in votes}


class SeatShares(Asked):
    """Asks for the seats of a council by the method of D'Hondt, as a JSON object."""

    max_new_tokens = 128
    parties = 3
    rules = "Use the method of D'Hondt. Reply with a JSON object: the seats of every party by name."

    def draw(self, rng: random.Random, level: float) -> Draft | None:
        names = rng.sample(PARTIES.split(","), self.parties + round(2 * level))
        votes = [(name, rng.randint(200, 9000)) for name in names]
        seats = rng.randint(5, 9) + round(8 * level)
        shares = divide_seats(votes, seats)
        lines = "\n".join(f"{name}: {count} votes" for name, count in votes)
        question = f"The council has {seats} seats.\n{lines}"
        return None if shares is None else Draft(question, shares, f"{lines} {seats}")

    def verify(self, task: Task[dict[str, int]], rollout: Rollout) -> Verdict:
        text = rollout.text.strip(WHITE)
        found = parse_json(text, max_chars=1000)
        shares = found.value if found is not None else None
        right = (
            isinstance(shares, dict)
            and all(type(count) is int for count in shares.values())
            and shares == task.data
        )
        return judged(right, text[:200])

    def right(self, data: dict[str, int]) -> str:
        return json.dumps(data)
