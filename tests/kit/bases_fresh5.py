"""Sound environments from which the fifth fresh part is made by changing one thing."""

from __future__ import annotations

import json
import random
import re
from datetime import date, timedelta
from functools import cache
from typing import Any

from grpo_core import Environment, Message, Reward, Rollout, Task, TaskKey, Verdict, held_out
from grpo_core.extract import parse_integer, parse_json, xml_tag

BLANK = " \t\r\n"


class Sheet(Environment[Any]):
    """Draws facts, words a question about them, and compares what it reads with the solution."""

    max_new_tokens = 200
    timeout_seconds = 2.0

    def task(self, key: TaskKey) -> Task[Any]:
        rng = key.rng()
        while True:
            facts = self.draw(rng, key.level)
            if facts is None:
                continue
            question = self.wording(facts)
            if held_out(question) == (key.split == "eval"):
                return Task(key, (Message("user", question),), self.solution(facts))

    def draw(self, rng: random.Random, level: float) -> Any:
        """Return the facts of a task; None if they make no good one."""
        raise NotImplementedError

    def wording(self, facts: Any) -> str:
        raise NotImplementedError

    def solution(self, facts: Any) -> Any:
        raise NotImplementedError

    def read(self, text: str) -> Any:
        """Return the answer that a text gives; None if it gives none."""
        return text.strip(BLANK)

    def same(self, truth: Any, answer: Any) -> bool:
        return bool(truth == answer)

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        answer = self.read(rollout.text)
        right = answer is not None and self.same(task.data, answer)
        return Verdict({"reward": Reward(float(right))}, passed=right, answer=shown(answer))

    def wrapped(self, truth: Any) -> str:
        """Return a reply that gives the right answer."""
        return str(truth)

    def reference(self, task: Task[Any]) -> str:
        return self.wrapped(task.data)


def shown(answer: Any) -> str | None:
    """Return what a verdict says of an answer."""
    return None if answer is None else str(answer)[:120]


class Departures(Sheet):
    """When does the next tram leave? The answer is a time of day in the last line."""

    def draw(self, rng: random.Random, level: float) -> Any:
        walks = tuple(rng.randint(4, 25) for _ in range(2 + round(3 * level)))
        return rng.randint(300, 400), rng.randint(7, 38), rng.randint(430, 1415), walks

    def wording(self, facts: Any) -> str:
        first, gap, leaves, walks = facts
        told = ", then ".join(f"{minutes} minutes" for minutes in walks)
        return (
            f"Trams leave a stop every {gap} minutes, day and night, counted from {clock(first)}. "
            f"Somebody sets out at {clock(leaves)} and walks {told} to the stop. When does the "
            'first tram leave that is not missed? End with a line such as "Tram: 03:15".'
        )

    def solution(self, facts: Any) -> Any:
        return clock(self.minute(facts) % 1440)

    def minute(self, facts: Any) -> int:
        """Return the minute at which the tram leaves, counted from the midnight before."""
        first, gap, leaves, walks = facts
        return int(first - (first - leaves - sum(walks)) // gap * gap)

    def read(self, text: str) -> Any:
        label, _, time = text.strip(BLANK).rpartition("\n")[2].partition(": ")
        fits = re.fullmatch("([01][0-9]|2[0-3]):[0-5][0-9]", time)
        return time if label == "Tram" and fits else None

    def wrapped(self, truth: Any) -> str:
        return f"Tram: {truth}"


def clock(minutes: int) -> str:
    """Return a time of day, such as "07:05"."""
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


class Fuel(Sheet):
    """How much does a lorry burn? The answer is a number with a unit, in a block."""

    def draw(self, rng: random.Random, level: float) -> Any:
        legs = tuple(10 * rng.randint(4, 60) for _ in range(2 + round(3 * level)))
        return rng.randint(151, 399), legs

    def wording(self, facts: Any) -> str:
        tenths, legs = facts
        told = ", ".join(f"{km} km" for km in legs)
        return (
            f"A lorry burns {tenths // 10}.{tenths % 10} litres per 100 km. It drives {told}. How "
            "much does it burn in all? End with litres and two decimals, as in "
            "<answer>7.05 l</answer>."
        )

    def solution(self, facts: Any) -> Any:
        tenths, legs = facts
        hundredths = tenths * sum(legs) // 10
        return f"{hundredths // 100}.{hundredths % 100:02d} l"

    def read(self, text: str) -> Any:
        block = xml_tag(text, tag="answer")
        return None if block is None or text[block.end :].strip() else block.content.strip(BLANK)

    def wrapped(self, truth: Any) -> str:
        return f"<answer>{truth}</answer>"


PARTS = ("bolts", "brackets", "clamps", "gaskets", "hinges", "nuts", "rivets", "screws", "washers")


class Stock(Sheet):
    """What is in the bins of a store at night? The answer is a JSON object."""

    def draw(self, rng: random.Random, level: float) -> Any:
        names = sorted(rng.sample(PARTS, 2 + round(3 * level)))
        return tuple(
            (name, rng.randint(301, 999), rng.randint(11, 199), rng.randint(11, 199))
            for name in names
        )

    def wording(self, facts: Any) -> str:
        told = " ".join(
            f"There are {had} {name}; {came} come in, {went} go out."
            for name, had, came, went in facts
        )
        return f"{told} What is left of each? Reply with a JSON object only: whole numbers by name."

    def solution(self, facts: Any) -> Any:
        return {name: had + came - went for name, had, came, went in facts}

    def read(self, text: str) -> Any:
        value = parse_json(text, max_chars=2000)
        return value.value if value is not None and isinstance(value.value, dict) else None

    def same(self, truth: Any, answer: Any) -> bool:
        return json.dumps(truth, sort_keys=True) == json.dumps(answer, sort_keys=True)

    def wrapped(self, truth: Any) -> str:
        return json.dumps(truth)


class Offers(Sheet):
    """Which offer is the cheapest by weight? The answer is a letter in a JSON object."""

    def draw(self, rng: random.Random, level: float) -> Any:
        spread = 400 - round(300 * level)
        offers = []
        for _ in "ABCD":
            grams = 10 * rng.randint(11, 99)
            offers.append((grams, grams * rng.randint(700, 700 + spread) // 1000))
        prices = sorted(cents / grams for grams, cents in offers)
        return tuple(offers) if prices[1] > 1.01 * prices[0] else None

    def wording(self, facts: Any) -> str:
        told = "\n".join(
            f"{letter}: {grams} g for {cents // 100}.{cents % 100:02d}"
            for letter, (grams, cents) in zip("ABCD", facts, strict=True)
        )
        return (
            f"Which of these offers of rice is the cheapest by weight?\n{told}\nReply with a JSON "
            'object only, with the letter of the offer: {"choice": ...}'
        )

    def solution(self, facts: Any) -> Any:
        return min(zip(facts, "ABCD", strict=True), key=lambda pair: pair[0][1] / pair[0][0])[1]

    def read(self, text: str) -> Any:
        value = parse_json(text, max_chars=1000)
        return value.value if value is not None and isinstance(value.value, dict) else None

    def same(self, truth: Any, answer: Any) -> bool:
        return bool(answer == {"choice": truth})

    def wrapped(self, truth: Any) -> str:
        return json.dumps({"choice": truth})


NOTES = ("C", "C#", "D", "D#", "E", "F", "F#", "G", "G#", "A", "A#", "B")


class Semitones(Sheet):
    """Move a row of notes up. The answer is a row of notes."""

    def draw(self, rng: random.Random, level: float) -> Any:
        notes = tuple(rng.choice(NOTES) for _ in range(5 + round(5 * level)))
        return notes, rng.randint(1, 11)

    def wording(self, facts: Any) -> str:
        notes, steps = facts
        return (
            f"Move each of these notes up by {steps} semitones: {' '.join(notes)}. Reply with the "
            "names of the notes only, with sharps and no flats, and spaces between them."
        )

    def solution(self, facts: Any) -> Any:
        notes, steps = facts
        return " ".join(NOTES[(NOTES.index(note) + steps) % 12] for note in notes)


DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July", "August"),
    *("September", "October", "November", "December"),
)


class Weekdays(Sheet):
    """Which date has a certain weekday? The answer is a date."""

    def draw(self, rng: random.Random, level: float) -> Any:
        year, month = 2027 + rng.randint(0, 2 + round(20 * level)), rng.randint(1, 12)
        return year, month, rng.randrange(7), rng.randrange(4)

    def wording(self, facts: Any) -> str:
        year, month, weekday, week = facts
        which = ("first", "second", "third", "fourth")[week]
        return (
            f"1 January 2027 is a Friday. Which date is the {which} {DAYS[weekday]} of "
            f"{MONTHS[month - 1]} {year}? Reply with the date only, as in: 2026-12-31"
        )

    def solution(self, facts: Any) -> Any:
        year, month, weekday, week = facts
        first = date(year, month, 1)
        ahead = (weekday - first.weekday()) % 7 + 7 * week
        return (first + timedelta(days=ahead)).isoformat()


@cache
def sensors() -> tuple[tuple[str, str, int, int, int], ...]:
    """Return the boxes of a catalogue by name and revision, each with what it weighs in parts."""
    rng = random.Random("sensors")
    names = sorted(f"{a}{b}-{n}" for a in "DKMT" for b in "EX" for n in rng.sample(range(99), 30))
    rows = []
    for name in names:
        count, each, empty = rng.randint(6, 48), rng.randint(21, 95), rng.randint(150, 450)
        rows += [(name, "A", count, each, empty), (name, "B", count, each, empty + 35)]
    return tuple(rows)


class Sensors(Sheet):
    """A list of boxes with an end. What does a full one weigh? The answer is a number."""

    levels = False

    def rows(self, split: str) -> tuple[Any, ...]:
        return tuple(row for row in sensors() if held_out(row[0]) == (split == "eval"))

    def size(self, split: str) -> int | None:
        return len(self.rows(split))

    def task(self, key: TaskKey) -> Task[Any]:
        facts = self.rows(key.split)[key.index]
        return Task(key, (Message("user", self.wording(facts)),), self.solution(facts))

    def wording(self, facts: Any) -> str:
        name, revision, count, each, empty = facts
        return (
            f"A box holds {count} sensors {name}, revision {revision}, of {each} g each. Empty it "
            f"weighs {empty} g. How many grams does the full box weigh? Reply with the number only."
        )

    def solution(self, facts: Any) -> Any:
        _, _, count, each, empty = facts
        return count * each + empty

    def read(self, text: str) -> Any:
        return parse_integer(text, max_digits=9)
