"""Sound environments from which the third fresh part is made by changing one thing."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, ClassVar

from bases_fresh2 import SPACE, Jsonic, Quiz, Spelled, SummitSentence, same_fact

from grpo_core import Environment, Reward, Task, TaskKey, Verdict, held_out
from grpo_core.extract import parse_integer, xml_tag
from grpo_core.protocol.environment import Services
from grpo_core.testing import FakeJudge

NAMES = (
    *("Anka", "Boro", "Cilla", "Dario", "Edda", "Fenno", "Gitta", "Hasso", "Imke", "Jaro"),
    *("Kessa", "Ludo", "Mirja", "Nilo", "Orsa", "Pavel", "Quint", "Runa", "Sven", "Tilda"),
)
DAY = 24 * 60
ROADS = {"north": (0, 1), "south": (0, -1), "east": (1, 0), "west": (-1, 0)}


def clock(minutes: int) -> str:
    """Return a time of day, such as "07:05"."""
    return f"{minutes // 60 % 24:02d}:{minutes % 60:02d}"


class Exam(Quiz):
    """What the whole question says decides the split."""

    def fitting(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        while True:
            content = self.drawn(key, rng)
            if held_out(self.question(*content)) == (key.split == "eval"):
                return content


class Initials(Exam, Spelled):
    """Who is how old? The answer is the initials from the youngest to the oldest."""

    form = r"[A-Z]{3,9}"

    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        names = rng.sample(NAMES, 4 + round(4 * key.level))
        return (tuple(zip(names, rng.sample(range(5, 105), len(names)), strict=True)),)

    def question(self, people: tuple[tuple[str, int], ...]) -> str:
        told = ", ".join(f"{name} is {age}" for name, age in people)
        return (
            f"{told}. Put them in order, the youngest first. "
            "Reply with their initials only, in capitals and without spaces."
        )

    def solved(self, people: tuple[tuple[str, int], ...]) -> Any:
        return "".join(name[0] for name, _ in sorted(people, key=lambda person: person[1]))


class Arrival(Exam, Spelled):
    """When does a train arrive? The answer is a time of day."""

    form = r"[0-2]\d:[0-5]\d"

    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        while True:
            start, minutes = rng.randrange(DAY), rng.randint(61, 600 + round(5000 * key.level))
            if minutes % DAY:
                return start, minutes

    def question(self, start: int, minutes: int) -> str:
        return (
            f"A train leaves at {clock(start)} and takes {minutes} minutes. "
            "At what time of the day does it arrive? Reply with the time only, as HH:MM."
        )

    def solved(self, start: int, minutes: int) -> str:
        return clock(start + minutes)


class Walk(Exam, Jsonic):
    """Where does a walk end? The answer is a JSON object."""

    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        start = rng.randint(200, 900), rng.randint(200, 900)
        count = 4 + round(8 * key.level)
        return start, tuple((rng.choice(list(ROADS)), rng.randint(3, 90)) for _ in range(count))

    def question(self, start: tuple[int, int], steps: tuple[tuple[str, int], ...]) -> str:
        told = ", ".join(f"{length} m {road}" for road, length in steps)
        return (
            f"You stand {start[0]} m east and {start[1]} m north of a well, and walk {told}. How "
            'far east and north of it are you then? Reply with JSON: {"east": ..., "north": ...}'
        )

    def solved(self, start: tuple[int, int], steps: tuple[tuple[str, int], ...]) -> dict[str, int]:
        east, north = start
        for road, length in steps:
            east += ROADS[road][0] * length
            north += ROADS[road][1] * length
        return {"east": east, "north": north}


class Tally(Exam):
    """How many votes has the winner? The answer is a number in a block, and its form is paid."""

    parts: ClassVar[Mapping[str, float]] = {"form": 0.1, "exact": 0.9}

    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        while True:
            wards = tuple(
                tuple(rng.sample(range(101, 9999), 3)) for _ in range(2 + round(6 * key.level))
            )
            if len({sum(votes) for votes in zip(*wards, strict=True)}) == 3:
                return (wards,)

    def question(self, wards: tuple[tuple[int, ...], ...]) -> str:
        told = "\n".join(
            f"Ward {number}: red {red}, green {green}, blue {blue}"
            for number, (red, green, blue) in enumerate(wards, 1)
        )
        return (
            f"{told}\nHow many votes has the colour with the most votes in all wards together? "
            "End with <votes>N</votes>."
        )

    def solved(self, wards: tuple[tuple[int, ...], ...]) -> int:
        return max(map(sum, zip(*wards, strict=True)))

    def read(self, text: str) -> int | None:
        block = xml_tag(text, tag="votes")
        return None if block is None or text[block.end :].strip() else parse_integer(block.content)

    def judged(self, task: Task[Any], answer: Any) -> Verdict:
        right = self.accepts(task.data, answer)
        rewards = {"form": Reward(float(answer is not None)), "exact": Reward(float(right))}
        return Verdict(rewards, passed=right, answer=None if answer is None else str(answer))

    def reference(self, task: Task[Any]) -> str:
        return f"<votes>{task.data}</votes>"

    def cheats(self, task: Task[Any]) -> Sequence[str]:
        return (str(task.data), f"<votes>{task.data}")


@cache
def squared() -> Mapping[str, list[int]]:
    """Return different numbers for each split."""
    numbers = random.Random("squares").sample(range(100, 10_000), 8000)
    return {
        "train": [number for number in numbers if not held_out(str(number))],
        "eval": [number for number in numbers if held_out(str(number))],
    }


class Squares(Quiz):
    """A list with an end: the square of a number."""

    levels = False

    def size(self, split: str) -> int | None:
        return len(squared()[split])

    def fitting(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return (squared()[key.split][key.index],)

    def question(self, number: int) -> str:
        return f"What is the square of {number}? Reply with the number only."

    def solved(self, number: int) -> int:
        return number * number

    def read(self, text: str) -> int | None:
        return parse_integer(text, max_digits=12)


def judged_by_facts(environment: type[SummitSentence]) -> Environment[Any]:
    """Return the environment with a judge that reads exactly."""
    return environment(services=Services(judges={"default": FakeJudge(same_fact)}))


__all__ = [
    "DAY",
    "NAMES",
    "ROADS",
    "SPACE",
    "Arrival",
    "Exam",
    "Initials",
    "Squares",
    "SummitSentence",
    "Tally",
    "Walk",
    "clock",
    "judged_by_facts",
    "squared",
]
