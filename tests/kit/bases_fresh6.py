"""Sound environments from which the sixth fresh part is made by changing one thing."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Iterator
from typing import Any

from grpo_core import Environment, Message, Reward, Rollout, Task, TaskKey, Verdict, held_out
from grpo_core.extract import parse_decimal, parse_json, xml_tag

WHITE = " \t\r\n"


class Quiz(Environment[Any]):
    """Asks a question whose words decide the split; one reply, right or wrong."""

    max_new_tokens = 160
    timeout_seconds = 2.0

    def task(self, key: TaskKey) -> Task[Any]:
        for facts in self.facts(key):
            question = self.question(facts)
            if held_out(question) == (key.split == "eval"):
                return Task(key, self.prompt(question), self.truth(facts))
        raise AssertionError("facts() has no end")

    def facts(self, key: TaskKey) -> Iterator[Any]:
        """Yield candidates for the facts of a task; the first of the right split is taken."""
        rng = key.rng()
        while True:
            facts = self.draw(rng, key.level)
            if facts is not None:
                yield facts

    def draw(self, rng: random.Random, level: float) -> Any:
        raise NotImplementedError

    def question(self, facts: Any) -> str:
        raise NotImplementedError

    def prompt(self, question: str) -> tuple[Message, ...]:
        return (Message("user", question),)

    def truth(self, facts: Any) -> Any:
        raise NotImplementedError

    def read(self, text: str) -> Any:
        """Return the answer that a reply gives; None if it gives none."""
        return text.strip(WHITE)

    def fits(self, truth: Any, answer: Any) -> bool:
        return bool(answer == truth)

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        answer = self.read(rollout.text)
        right = answer is not None and self.fits(task.data, answer)
        return Verdict({"reward": Reward(float(right))}, passed=right, answer=brief(answer))

    def reply_with(self, truth: Any) -> str:
        return str(truth)

    def reference(self, task: Task[Any]) -> str:
        return self.reply_with(task.data)


def brief(answer: Any) -> str | None:
    """Return an answer as a verdict shows it."""
    return None if answer is None else str(answer)[:100]


def last_line(text: str) -> str:
    """Return the last line of a text, without what stands around it."""
    return text.strip(WHITE).rpartition("\n")[2].strip(WHITE)


def at_the_end(text: str, tag: str) -> str | None:
    """Return what stands in the only block of a text, if nothing comes behind it."""
    block = xml_tag(text, tag=tag)
    return None if block is None or text[block.end :].strip(WHITE) else block.content.strip(WHITE)


class Medals(Quiz):
    """How many medals has a team in the end? The answer is an object with fixed keys."""

    def draw(self, rng: random.Random, level: float) -> Any:
        start = tuple(rng.randint(11, 89) for _ in range(3))
        days = tuple(
            tuple(rng.randint(1, 19) for _ in range(3)) for _ in range(1 + round(3 * level))
        )
        return start, days

    def question(self, facts: Any) -> str:
        start, days = facts
        won = " Then it wins ".join(
            f"{gold} gold, {silver} silver and {bronze} bronze medals."
            for gold, silver, bronze in days
        )
        return (
            f"A team has {start[0]} gold, {start[1]} silver and {start[2]} bronze medals. It wins "
            f"{won} How many has it in the end? Reply with a JSON object only, with whole numbers "
            'for the keys "gold", "silver" and "bronze".'
        )

    def truth(self, facts: Any) -> Any:
        start, days = facts
        sums = (sum(column) for column in zip(start, *days, strict=True))
        return dict(zip(("gold", "silver", "bronze"), sums, strict=True))

    def read(self, text: str) -> Any:
        found = parse_json(text, max_chars=500)
        if found is None or not isinstance(found.value, dict):
            return None
        counts = found.value
        return counts if all(type(count) is int for count in counts.values()) else None

    def reply_with(self, truth: Any) -> str:
        return json.dumps(truth)


class Ledger(Quiz):
    """What is on an account? The answer is an amount with its sign, in the last line."""

    def draw(self, rng: random.Random, level: float) -> Any:
        moves = tuple(
            rng.choice((-1, 1)) * rng.randint(205, 49_999) for _ in range(3 + round(5 * level))
        )
        return moves if sum(moves) else None

    def question(self, facts: Any) -> str:
        told = ", ".join(
            f"{'in' if cents > 0 else 'out'} {abs(cents) / 100:.2f}" for cents in facts
        )
        return (
            f"An account is empty. Money goes: {told}. What is on it? It may be overdrawn. Work it "
            "out, and end with a line such as: Balance: -70.05 EUR"
        )

    def truth(self, facts: Any) -> Any:
        return f"{sum(facts) / 100:.2f}"

    def read(self, text: str) -> Any:
        found = re.fullmatch("Balance: (-?[0-9]+[.][0-9]{2}) EUR", last_line(text))
        return found[1] if found else None

    def reply_with(self, truth: Any) -> str:
        return f"Balance: {truth} EUR"


class Statements(Quiz):
    """Which of six products are right? The answer is some letters in a block."""

    def draw(self, rng: random.Random, level: float) -> Any:
        rows = []
        for _ in "ABCDEF":
            a, b = rng.randint(3, 19), rng.randint(3, 12 + round(80 * level))
            rows.append((a, b, a * b + rng.choice((0, 0, 1, -1, 10, -10))))
        return tuple(rows) if 0 < sum(a * b == c for a, b, c in rows) < 6 else None

    def question(self, facts: Any) -> str:
        told = "\n".join(
            f"{letter}: {a} x {b} = {c}" for letter, (a, b, c) in zip("ABCDEF", facts, strict=True)
        )
        return (
            f"Which of these are right?\n{told}\nEnd with their letters in the order of the "
            "alphabet, as in <letters>XYZ</letters>."
        )

    def truth(self, facts: Any) -> Any:
        return "".join(
            letter for letter, (a, b, c) in zip("ABCDEF", facts, strict=True) if a * b == c
        )

    def read(self, text: str) -> Any:
        return at_the_end(text, "letters")

    def reply_with(self, truth: Any) -> str:
        return f"<letters>{truth}</letters>"


class Carpet(Quiz):
    """How large are some rooms together? The answer is a number with two decimals in a block."""

    def draw(self, rng: random.Random, level: float) -> Any:
        return tuple(
            (rng.randint(21, 69), rng.randint(21, 69)) for _ in range(2 + round(3 * level))
        )

    def question(self, facts: Any) -> str:
        told = ", ".join(f"{a / 10:.1f} m by {b / 10:.1f} m" for a, b in facts)
        return (
            f"A flat has rooms of {told}. How many square metres is that? Think first, and end "
            "with exactly two decimals, as in <area>7.14</area>."
        )

    def truth(self, facts: Any) -> Any:
        return f"{sum(a * b for a, b in facts) / 100:.2f}"

    def read(self, text: str) -> Any:
        said = at_the_end(text, "area")
        return None if said is None or parse_decimal(said, max_digits=9) is None else said

    def reply_with(self, truth: Any) -> str:
        return f"<area>{truth}</area>"


class Harvest(Quiz):
    """How heavy is a harvest? The answer is a whole number with its unit in a block."""

    def draw(self, rng: random.Random, level: float) -> Any:
        return tuple(
            (rng.randint(112, 989), rng.randint(23, 98)) for _ in range(2 + round(3 * level))
        )

    def question(self, facts: Any) -> str:
        told = ", ".join(f"{count} crates of {each} kg" for count, each in facts)
        return f"A farm sends {told}. How heavy is all of it? End with <weight>1234 kg</weight>."

    def truth(self, facts: Any) -> Any:
        return f"{sum(count * each for count, each in facts)} kg"

    def read(self, text: str) -> Any:
        return at_the_end(text, "weight")

    def reply_with(self, truth: Any) -> str:
        return f"<weight>{truth}</weight>"


class Deltas(Quiz):
    """By how much do numbers change? The answer is a list of numbers in the last line."""

    def draw(self, rng: random.Random, level: float) -> Any:
        numbers = tuple(rng.randint(100, 999) for _ in range(5 + round(5 * level)))
        return numbers if all(a != b for a, b in itertools.pairwise(numbers)) else None

    def question(self, facts: Any) -> str:
        return (
            f"A meter shows {', '.join(map(str, facts))}. By how much does it change each time? "
            "End with a line of numbers with one space between them, such as: Changes: -3 12 270"
        )

    def truth(self, facts: Any) -> Any:
        return " ".join(str(b - a) for a, b in itertools.pairwise(facts))

    def read(self, text: str) -> Any:
        label, _, rest = last_line(text).partition(": ")
        return rest if label == "Changes" and rest else None

    def reply_with(self, truth: Any) -> str:
        return f"Changes: {truth}"


class Running(Quiz):
    """Write a sum step by step. The answer has one line for each step."""

    def draw(self, rng: random.Random, level: float) -> Any:
        return tuple(rng.randint(111, 989) for _ in range(6 + round(4 * level)))

    def question(self, facts: Any) -> str:
        return (
            f"Add up {', '.join(map(str, facts))} from left to right. Reply with one line for each "
            'addition and nothing else, such as "305 + 210 = 515".'
        )

    def truth(self, facts: Any) -> Any:
        lines, total = [], facts[0]
        for number in facts[1:]:
            lines.append(f"{total} + {number} = {total + number}")
            total += number
        return lines

    def read(self, text: str) -> Any:
        lines = [line.strip(WHITE) for line in text.strip(WHITE).split("\n")[:50]]
        return lines if lines[0] else None

    def reply_with(self, truth: Any) -> str:
        return "\n".join(truth)
