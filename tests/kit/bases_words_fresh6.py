"""Sound environments of the sixth fresh part whose answers are code, names and arrays."""

from __future__ import annotations

import itertools
import json
import random
import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

from bases_fresh6 import WHITE, Quiz, last_line

from grpo_core.extract import parse_json
from grpo_env_dataset.env import Config

ROWS = Path(__file__).with_name("rows_fresh6.jsonl")
REWARDS = Path(__file__).with_name("rewards_fresh6.py")
NOUNS = (
    *("anchor", "basket", "candle", "dragon", "engine", "feather", "garden", "hammer", "island"),
    *("jacket", "kettle", "ladder", "magnet", "needle", "orchid", "pepper", "quarry", "ribbon"),
    *("saddle", "timber", "urchin", "velvet", "window", "yellow", "zipper"),
)
TOWNS = (
    *("Arles", "Bern", "Cadiz", "Delft", "Erfurt", "Ghent", "Hull", "Ivrea", "Jena", "Kiel"),
    *("Lund", "Metz", "Nice", "Opole", "Pisa", "Reims", "Siena", "Trier", "Ulm", "Vigo"),
)


class Camel(Quiz):
    """Write a name in camel case. The answer is the name."""

    def draw(self, rng: random.Random, level: float) -> Any:
        return tuple(rng.sample(NOUNS, 3 + round(4 * level)))

    def question(self, facts: Any) -> str:
        return (
            f"Write the name {'_'.join(facts)} in camel case, as in myOldCar. Reply with the new "
            "name only."
        )

    def truth(self, facts: Any) -> Any:
        return facts[0] + "".join(map(str.capitalize, facts[1:]))


class Renamed(Quiz):
    """Rename a variable. The answer is a piece of code."""

    def draw(self, rng: random.Random, level: float) -> Any:
        names = tuple(rng.sample(NOUNS, 4))
        numbers = tuple(rng.randint(2, 98) for _ in range(3 + round(3 * level)))
        return names, numbers

    def question(self, facts: Any) -> str:
        old, _, _, new = facts[0]
        return (
            f"Rename the variable {old} to {new}:\n\n{self.code(facts)}\n\nReply with the new code "
            "only."
        )

    def code(self, facts: Any) -> str:
        (old, one, other, _), numbers = facts
        lines = [f"{old} = {one} * {numbers[0]}"]
        for at, number in enumerate(numbers[1:]):
            lines.append(f"{other} = {old} + {number}" if at % 2 else f"{old} += {one} - {number}")
        return "\n".join([*lines, f"return {old}, {other}"])

    def truth(self, facts: Any) -> Any:
        return re.sub(rf"\b{facts[0][0]}\b", facts[0][3], self.code(facts))


class Paths(Quiz):
    """Where does a row of commands lead? The answer is a path."""

    def draw(self, rng: random.Random, level: float) -> Any:
        steps, depth = [], 2
        begin = tuple(rng.sample(NOUNS, 2))
        for _ in range(4 + round(5 * level)):
            up = depth > 1 and rng.random() < 0.4
            steps.append(".." if up else rng.choice(NOUNS))
            depth += -1 if up else 1
        return begin, tuple(steps)

    def question(self, facts: Any) -> str:
        begin, steps = facts
        told = "\n".join(f"cd {step}" for step in steps)
        return (
            f"A shell is in the folder /{'/'.join(begin)} and runs\n{told}\nWhere is it then? "
            "Reply with the full path only, as in: /home/me"
        )

    def truth(self, facts: Any) -> Any:
        way = list(facts[0])
        for step in facts[1]:
            if step == "..":
                way.pop()
            else:
                way.append(step)
        return f"/{'/'.join(way)}"


class Gates(Quiz):
    """What does a circuit give? The answer is an array of bits."""

    def draw(self, rng: random.Random, level: float) -> Any:
        inputs = tuple(rng.randint(0, 1) for _ in range(4))
        gates = []
        for at in range(6 + round(6 * level)):
            one, other = rng.sample(range(4 + at), 2)
            gates.append((rng.choice(("AND", "OR", "XOR")), one, other))
        return inputs, tuple(gates)

    def question(self, facts: Any) -> str:
        inputs, gates = facts
        given = ", ".join(f"w{at} = {bit}" for at, bit in enumerate(inputs))
        told = "\n".join(f"w{at} = w{a} {op} w{b}" for at, (op, a, b) in enumerate(gates, 4))
        return (
            f"A circuit gets {given}.\n{told}\nWhat are w4 to w{3 + len(gates)}? Reply with a JSON "
            "array of the numbers 0 and 1 only."
        )

    def truth(self, facts: Any) -> Any:
        wires = list(facts[0])
        for op, one, other in facts[1]:
            a, b = wires[one], wires[other]
            wires.append({"AND": a & b, "OR": a | b, "XOR": a ^ b}[op])
        return wires[4:]

    def read(self, text: str) -> Any:
        found = parse_json(text, max_chars=400)
        if found is None or not isinstance(found.value, list):
            return None
        return found.value if all(type(bit) is int for bit in found.value) else None

    def reply_with(self, truth: Any) -> str:
        return json.dumps(truth)


FIELDS = ("brand", "colour", "limit", "page", "price", "shape", "size", "weight")


class Queries(Quiz):
    """Write the query of a link. The answer is a text such as a=1&b=2."""

    def draw(self, rng: random.Random, level: float) -> Any:
        fields = rng.sample(FIELDS, 3 + round(4 * level))
        return tuple((field, str(rng.randint(2, 99) * rng.randint(2, 9))) for field in fields)

    def question(self, facts: Any) -> str:
        told = ", ".join(f"{field} {value}" for field, value in facts)
        return (
            f"Write the query of a link for {told}. Reply with the query only, its fields in any "
            "order, as in: name=7&kind=300"
        )

    def truth(self, facts: Any) -> Any:
        return dict(facts)

    def read(self, text: str) -> Any:
        said = text.strip(WHITE)
        if not re.fullmatch("[a-z]{1,9}=[0-9]{1,9}(&[a-z]{1,9}=[0-9]{1,9}){0,20}", said):
            return None
        pairs = parse_qsl(said)
        return dict(pairs) if len(dict(pairs)) == len(pairs) else None

    def reply_with(self, truth: Any) -> str:
        return urlencode(truth)


class Averages(Quiz):
    """What are the means of some pairs? The answer is an array of numbers."""

    def draw(self, rng: random.Random, level: float) -> Any:
        return tuple(
            (rng.randint(11, 999), rng.randint(11, 999)) for _ in range(3 + round(3 * level))
        )

    def question(self, facts: Any) -> str:
        told = ", ".join(f"{a} and {b}" for a, b in facts)
        return f"What are the means of {told}? Reply with a JSON array of numbers only."

    def truth(self, facts: Any) -> Any:
        return [(a + b) / 2 for a, b in facts]

    def read(self, text: str) -> Any:
        found = parse_json(text, max_chars=400)
        if found is None or not isinstance(found.value, list):
            return None
        return found.value if all(type(x) in (int, float) for x in found.value) else None

    def reply_with(self, truth: Any) -> str:
        return json.dumps(truth)


class Tour(Quiz):
    """In which order are towns visited? The answer is a list of names in the last line."""

    def draw(self, rng: random.Random, level: float) -> Any:
        towns = rng.sample(self.towns(level), 4 + round(4 * level))
        pairs = list(itertools.pairwise(towns))
        return tuple(towns), tuple(rng.sample(pairs, len(pairs)))

    def towns(self, level: float) -> tuple[str, ...]:
        return TOWNS

    def question(self, facts: Any) -> str:
        told = ", ".join(f"{one} right before {other}" for one, other in facts[1])
        return (
            f"Somebody visits {told}. In which order are the towns visited? End with a line such "
            "as: Route: Turin, Basel, Lyon"
        )

    def truth(self, facts: Any) -> Any:
        return list(facts[0])

    def read(self, text: str) -> Any:
        label, _, rest = last_line(text).partition(": ")
        return rest.split(", ") if label == "Route" else None

    def reply_with(self, truth: Any) -> str:
        return f"Route: {', '.join(truth)}"


class Field(Quiz):
    """Where on a field of numbers does a walk end? The answer is a row and a column."""

    def draw(self, rng: random.Random, level: float) -> Any:
        size = 5 + round(4 * level)
        numbers = rng.sample(range(10, 100), size * size)
        rows = tuple(tuple(numbers[at : at + size]) for at in range(0, size * size, size))
        row, column, steps = rng.randrange(size), rng.randrange(size), list[str]()
        begin = (row, column)
        for _ in range(5):
            word, down, right = rng.choice(
                (("up", -1, 0), ("down", 1, 0), ("left", 0, -1), ("right", 0, 1))
            )
            if 0 <= row + down < size and 0 <= column + right < size:
                row, column = row + down, column + right
                steps.append(word)
        return (rows, begin, tuple(steps), (row, column)) if len(steps) > 3 else None

    def question(self, facts: Any) -> str:
        rows, (row, column), steps, _ = facts
        told = "\n".join(" ".join(map(str, numbers)) for numbers in rows)
        return (
            f"{told}\n\nA token is in row {row + 1}, column {column + 1} of this field, counted "
            f"from 1 at the top left. It moves {', '.join(steps)}. Reply with where it is, as in: "
            "row 7, column 4"
        )

    def truth(self, facts: Any) -> Any:
        rows, _, _, (row, column) = facts
        return {"rows": rows, "place": (row, column)}

    def read(self, text: str) -> Any:
        found = re.fullmatch("row ([1-9][0-9]?), column ([1-9][0-9]?)", text.strip(WHITE))
        return (int(found[1]) - 1, int(found[2]) - 1) if found else None

    def fits(self, truth: Any, answer: Any) -> bool:
        return bool(answer == truth["place"])

    def reply_with(self, truth: Any) -> str:
        row, column = truth["place"]
        return f"row {row + 1}, column {column + 1}"


def settings6(reward: str, **others: Any) -> Config:
    """Return the settings for the rows of this part, with one of its functions."""
    return Config(path=str(ROWS), reward=f"{REWARDS}:{reward}", tag="", **others)
