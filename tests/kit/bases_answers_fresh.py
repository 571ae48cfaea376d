"""Sound environments of many kinds, from which the fresh half is made by changing one thing."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import date, timedelta
from decimal import Decimal
from fractions import Fraction
from itertools import count
from random import Random
from typing import Any, ClassVar
from zlib import crc32

from bases import syllables

from grpo_core import Environment, Message, Reward, Rollout, Task, TaskKey, Verdict
from grpo_core.extract import parse_decimal, parse_integer, parse_json

SPACE = " \t\r\n"


def kept_back(question: str) -> bool:
    """Return whether a question is held out: its words decide, whatever their order."""
    words = sorted(re.findall(r"\w+|[^\w\s]+", question.lower()))
    return crc32(" ".join(words).encode()) % 5 == 0


class Asked(Environment[Any]):
    """A question with a right answer; a subclass writes `question`, and `accepts` decides."""

    timeout_seconds = 2.0

    def task(self, key: TaskKey) -> Task[Any]:
        for attempt in count():
            question, right = self.question(key.rng(attempt), key.level)
            if kept_back(question) == (key.split == "eval"):
                return Task(key, (Message("user", question),), right)
        raise AssertionError("the loop has no end")

    def question(self, rng: Random, level: float) -> tuple[str, Any]:
        raise NotImplementedError

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        return self.judged(self.accepts(task.data, rollout.text), rollout.text)

    def accepts(self, right: Any, text: str) -> bool:
        return text.strip(SPACE) == self.written(right)

    def judged(self, right: bool, text: str) -> Verdict:
        return Verdict({"reward": Reward(float(right))}, passed=right, answer=text.strip()[:100])

    def written(self, right: Any) -> str:
        return str(right)

    def reference(self, task: Task[Any]) -> str:
        return self.written(task.data)


def clock(minutes: int) -> str:
    """Return a time of the day, such as 07:05."""
    return f"{minutes // 60 % 24:02}:{minutes % 60:02}"


class ArrivalTime(Asked):
    """When does a train arrive? It has more legs at higher levels."""

    def question(self, rng: Random, level: float) -> tuple[str, str]:
        start = rng.randrange(1440)
        legs = [rng.randrange(11, 300) for _ in range(1 + round(4 * level))]
        trip = ", then ".join(f"{leg} minutes" for leg in legs)
        question = f"A train leaves at {clock(start)} and travels {trip}. When does it arrive?"
        return f"{question} Reply with HH:MM, 24 hours.", clock(start + sum(legs))


class LaterDate(Asked):
    """Which date is some days later? The answer is an ISO date."""

    def question(self, rng: Random, level: float) -> tuple[str, str]:
        first = date(1990, 1, 1) + timedelta(rng.randrange(14_000))
        days = rng.randrange(11, 40 + round(3000 * level))
        question = f"Which date is {days} days after {first.isoformat()}? Reply with YYYY-MM-DD."
        return question, (first + timedelta(days)).isoformat()


class Hexadecimal(Asked):
    """Write a number to the base 16."""

    def question(self, rng: Random, level: float) -> tuple[str, str]:
        number = rng.randrange(16**3, 16 ** (4 + round(4 * level)))
        question = f"Write {number} in hexadecimal: lower case, no prefix, nothing else."
        return question, f"{number:x}"


class SortedNumbers(Asked):
    """Sort some numbers, more of them at higher levels."""

    def question(self, rng: Random, level: float) -> tuple[str, list[int]]:
        numbers = rng.sample(range(10, 1000), 5 + round(7 * level))
        if numbers == sorted(numbers):
            numbers.reverse()
        listed = " ".join(map(str, numbers))
        return f"Sort from small to large: {listed}. Separate by spaces.", sorted(numbers)

    def accepts(self, right: list[int], text: str) -> bool:
        return self.read(text) == right

    def read(self, text: str) -> list[int] | None:
        items = [parse_integer(item, max_digits=6) for item in text.strip(SPACE).split(" ")]
        numbers = [item for item in items if item is not None]
        return numbers if len(numbers) == len(items) else None

    def written(self, right: list[int]) -> str:
        return " ".join(map(str, right))


class CommonNumbers(Asked):
    """Which numbers are in both lists? A JSON list in any order."""

    def question(self, rng: Random, level: float) -> tuple[str, list[int]]:
        size = 5 + round(7 * level)
        numbers = rng.sample(range(10, 1000), 2 * size)
        both = numbers[: rng.randrange(2, size - 1)]
        one, two = numbers[:size], both + numbers[size : 2 * size - len(both)]
        rng.shuffle(one)
        rng.shuffle(two)
        question = f"Which numbers are in both {one} and {two}? Reply with a JSON list."
        return question, sorted(both)

    def accepts(self, right: list[int], text: str) -> bool:
        items = self.read(text)
        return items is not None and sorted(items) == right

    def read(self, text: str) -> list[int] | None:
        value = parse_json(text, max_chars=1000)
        if value is None or not isinstance(value.value, list):
            return None
        return value.value if all(type(item) is int for item in value.value) else None

    def written(self, right: list[int]) -> str:
        return json.dumps(right)


class Distance(Asked):
    """Add lengths in kilometres and metres; the answer is a decimal number of kilometres."""

    def question(self, rng: Random, level: float) -> tuple[str, Decimal]:
        top = round(10 ** (4 + 2 * level))
        one, two = rng.randrange(1000, top), rng.randrange(100, top)
        question = f"How many kilometres are {Decimal(one) / 100} km and {two} m together?"
        return f"{question} Reply with the number only.", Decimal(10 * one + two) / 1000

    def accepts(self, right: Decimal, text: str) -> bool:
        return parse_decimal(text, max_digits=20) == right

    def written(self, right: Decimal) -> str:
        return f"{right:f}"


class Fractions(Asked):
    """Add two fractions; the answer is in lowest terms."""

    def question(self, rng: Random, level: float) -> tuple[str, str]:
        low, top = 2 + round(30 * level), 12 + round(80 * level)
        while True:
            one, two = (Fraction(rng.randrange(low, top), rng.randrange(low, top)) for _ in "ab")
            proper = one.denominator > 1 < two.denominator and (one + two).denominator > 1
            if proper and str(one + two) not in f"{one} {two}":
                break
        return f"What is {one} + {two}? Reply with a fraction in lowest terms: a/b.", f"{one + two}"


class Temperatures(Asked):
    """How much warmer is it? Negative if it is colder."""

    def question(self, rng: Random, level: float) -> tuple[str, int]:
        top = 40 + round(4000 * level)
        while True:
            one, two = rng.randrange(-top, top), rng.randrange(-top, top)
            if abs(two - one) > 9 and str(abs(two - one)) not in f"{one} {two}":
                break
        question = f"The sensor said {one} and now says {two} degrees. What is the change?"
        return f"{question} Reply with a number, negative if it fell.", two - one

    def accepts(self, right: int, text: str) -> bool:
        return parse_integer(text, max_digits=9) == right


class PrimeFactors(Asked):
    """Name the prime factors of a number, in ascending order."""

    primes: ClassVar[Sequence[int]] = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43)

    def question(self, rng: Random, level: float) -> tuple[str, list[int]]:
        factors = sorted(rng.choices(self.primes, k=3 + round(3 * level)))
        product = 1
        for factor in factors:
            product *= factor
        question = f"Name the prime factors of {product} in ascending order, as in 97 x 101."
        return question, factors

    def written(self, right: list[int]) -> str:
        return " x ".join(map(str, right))


class CamelCase(Asked):
    """Turn a name with underscores into camel case."""

    def question(self, rng: Random, level: float) -> tuple[str, str]:
        words = [syllables(rng, 2) for _ in range(2 + round(5 * level))]
        camel = words[0] + "".join(word.title() for word in words[1:])
        return f"Write the name {'_'.join(words)} in camelCase. Reply with the name only.", camel


class Divisible(Asked):
    """Yes or no, evenly."""

    answer_in_prompt = True

    def question(self, rng: Random, level: float) -> tuple[str, str]:
        divisor = rng.randrange(3, 10 + round(40 * level))
        number = divisor * rng.randrange(10 ** (1 + round(3 * level)), 10 ** (2 + round(3 * level)))
        right = rng.choice(["yes", "no"])
        number += 0 if right == "yes" else rng.randrange(1, divisor)
        return f"Does {divisor} divide {number}? Reply with yes or no, in lower case.", right


class Traced(Asked):
    """What does a small program print? It has more lines at higher levels."""

    def question(self, rng: Random, level: float) -> tuple[str, int]:
        value = rng.randrange(11, 99)
        lines = [f"x = {value}"]
        for _ in range(2 + round(6 * level)):
            operand, sign = rng.randrange(2, 60), rng.choice("+-*")
            operand = operand % 5 + 2 if sign == "*" else operand
            lines.append(f"x {sign}= {operand}")
            value = {"+": value + operand, "-": value - operand, "*": value * operand}[sign]
        program = "\n".join([*lines, "print(x)"])
        if str(value) in program:
            return self.question(rng, level)
        return f"What does this program print? Reply with the number only.\n{program}", value

    def accepts(self, right: int, text: str) -> bool:
        return parse_integer(text) == right


class AlphabetOption(Asked):
    """Multiple choice: which of the words comes first in the alphabet?"""

    answer_in_prompt = True
    letters: ClassVar[str] = "ABCDEF"

    def question(self, rng: Random, level: float) -> tuple[str, str]:
        shared = syllables(rng, round(3 * level))
        words = list({shared + syllables(rng, 2): None for _ in range(9)})[: 4 + round(2 * level)]
        options = "\n".join(
            f"{letter}. {word}" for letter, word in zip(self.letters, words, strict=False)
        )
        right = self.letters[words.index(min(words))]
        question = (
            f"Which word comes first in the alphabet?\n{options}\nReply with its letter only."
        )
        return question, right


class RobotWalk(Asked):
    """Where does a robot end? More steps at higher levels."""

    def question(self, rng: Random, level: float) -> tuple[str, list[int]]:
        x, y, steps = 0, 0, list[str]()
        for _ in range(3 + round(7 * level)):
            way, far = rng.choice("NESW"), rng.randrange(2, 60)
            steps.append(f"{way}{far}")
            x += far * ((way == "E") - (way == "W"))
            y += far * ((way == "N") - (way == "S"))
        question = f"A robot at (0, 0) goes {' '.join(steps)}, where N adds to y and E to x."
        return f"{question} Where is it? Reply with JSON: [x, y].", [x, y]

    def accepts(self, right: list[int], text: str) -> bool:
        value = parse_json(text, max_chars=200)
        return value is not None and json.dumps(value.value) == json.dumps(right)

    def written(self, right: list[int]) -> str:
        return json.dumps(right)


class Colouring(Asked):
    """Colour the nodes of a graph; there are many right answers."""

    def question(self, rng: Random, level: float) -> tuple[str, dict[str, Any]]:
        nodes = rng.sample("abcdefghijklmnopqrstuvwxyz", 5 + round(7 * level))
        hidden = {node: rng.choice(["red", "green", "blue"]) for node in nodes}
        pairs = [(a, b) for a in nodes for b in nodes if a < b and hidden[a] != hidden[b]]
        rng.shuffle(pairs)
        pairs = pairs[: 2 * len(nodes)]
        edges = " ".join(f"{a}-{b}" for a, b in pairs)
        used = sorted({node for pair in pairs for node in pair})
        if len(used) < 4:
            return self.question(rng, level)
        question = (
            "Colour each node red, green or blue, so that no edge joins equal colours.\n"
            f'Edges: {edges}\nReply with JSON: {{"node": "colour", ...}}'
        )
        return question, {"edges": pairs, "answer": {node: hidden[node] for node in used}}

    def accepts(self, right: dict[str, Any], text: str) -> bool:
        value = parse_json(text, max_chars=2000)
        return value is not None and self.coloured(right, value.value)

    def coloured(self, right: dict[str, Any], value: Any) -> bool:
        if not isinstance(value, dict) or value.keys() != right["answer"].keys():
            return False
        if any(colour not in ("red", "green", "blue") for colour in value.values()):
            return False
        return all(value[one] != value[two] for one, two in right["edges"])

    def written(self, right: dict[str, Any]) -> str:
        return json.dumps(right["answer"])


NAMES = ("Ana", "Boris", "Chloe", "Dmitri", "Elif", "Farid", "Greta", "Hugo", "Ines", "Jonas")
FRUITS = ("apples", "pears", "plums", "figs", "limes", "dates", "kiwis", "melons")


class Extraction(Asked):
    """Read name, number and fruit out of a sentence among others, as a JSON object."""

    answer_in_prompt = True

    def question(self, rng: Random, level: float) -> tuple[str, dict[str, Any]]:
        names = rng.sample(NAMES, 2 + round(6 * level))
        facts = [(name, rng.randrange(20, 999), rng.choice(FRUITS)) for name in names]
        told = " ".join(f"{name} bought {many} {fruit}." for name, many, fruit in facts)
        name, many, fruit = rng.choice(facts)
        question = f'{told} What did {name} buy? Reply with JSON: {{"count": ..., "fruit": ...}}'
        return question, {"count": many, "fruit": fruit}

    def accepts(self, right: dict[str, Any], text: str) -> bool:
        value = parse_json(text, max_chars=1000)
        if value is None:
            return False
        return json.dumps(value.value, sort_keys=True) == json.dumps(right, sort_keys=True)

    def written(self, right: dict[str, Any]) -> str:
        return json.dumps(right)


class Brackets(Asked):
    """Is a row of brackets valid or invalid?"""

    answer_in_prompt = True

    def question(self, rng: Random, level: float) -> tuple[str, str]:
        row, pairs = "", 6 + round(8 * level)
        for _ in range(pairs):
            place, pair = rng.randrange(len(row) + 1), rng.choice(["()", "[]", "<>"])
            row = row[:place] + pair + row[place:]
        right = rng.choice(["valid", "invalid"])
        if right == "invalid":
            place = rng.randrange(len(row))
            row = row[:place] + row[place + 1 :]
        question = f"Are these brackets closed in order? {row}\nReply with valid or invalid."
        return question, right
