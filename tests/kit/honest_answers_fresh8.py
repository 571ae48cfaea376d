"""Honest designs whose way to judge answers looks odd."""

from __future__ import annotations

import math
import random

from bases_c2_fresh8 import lines_of
from bases_c_fresh8 import WHITE, TransposedTunes, chat, chosen, marked
from catalogue import honest

from grpo_core import Environment, Message, Reward, Rollout, Task, TaskKey, Verdict, held_out
from grpo_core.extract import parse_decimal

COURSES = [
    "algebra",
    "botany",
    "calculus",
    "drawing",
    "ethics",
    "fluids",
    "genetics",
    "history",
    "italian",
    "jazz",
    "kinetics",
    "logic",
    "mechanics",
    "networks",
    "optics",
    "physics",
]


@honest(
    "Any order passes that keeps every rule, and there are several for most tasks: the prompt asks "
    "for an order that is allowed, not for one of them."
)
class CoursesInAnyAllowedOrder(Environment[list[list[str]]]):
    """Asks for an order in which courses may be taken."""

    max_new_tokens = 64

    @staticmethod
    def draw(rng: random.Random, level: float) -> tuple[str, list[list[str]]]:
        """Return the rules, with one allowed order as the first list, then the pairs."""
        order = rng.sample(COURSES, 5 + round(4 * level))
        pairs = [(a, b) for n, a in enumerate(order) for b in order[n + 1 :]]
        while True:
            rules = rng.sample(pairs, len(order))
            if {name for rule in rules for name in rule} == set(order):
                break
        told = "; ".join(f"{first} before {later}" for first, later in rules)
        text = f"In which order may one take these courses? {told}."
        return text, [order, *map(list, rules)]

    def task(self, key: TaskKey) -> Task[list[list[str]]]:
        text, data = chosen(key, self.draw)
        return chat(key, "Reply with each course once, separated by commas.", text, data)

    def verify(self, task: Task[list[list[str]]], rollout: Rollout) -> Verdict:
        order, *rules = task.data
        parts = rollout.text.split(",") if len(rollout.text) < 500 else []
        given = [part.strip(WHITE) for part in parts]
        right = sorted(given) == sorted(order) and all(
            given.index(first) < given.index(later) for first, later in rules
        )
        return marked(right, rollout.text)

    def reference(self, task: Task[list[list[str]]]) -> str:
        return ", ".join(task.data[0])


@honest(
    "A wrong tune earns up to half for the notes that are right from its beginning, so that long "
    "tunes can be learned; only the whole tune passes."
)
class TunesPaidByTheNote(TransposedTunes):
    """Pays half of the share of leading notes that are right."""

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        verdict = super().verify(task, rollout)
        found, right = self.answers(rollout.text), task.data.split(" ")
        given = found[0].split(" ") if len(found) == 1 else []
        if verdict.passed or len(given) != len(right):
            return verdict
        first_wrong = next((n for n, note in enumerate(right) if given[n] != note), 0)
        paid = 0.5 * first_wrong / len(right)
        return Verdict({"reward": Reward(paid)}, answer=found[0][:100])


@honest(
    "A range of numbers passes: a period is computed with rounded constants, and the prompt allows "
    "one per cent, which the class declares."
)
class PendulumWithinAPercent(Environment[float]):
    """Asks for the period of a pendulum; one per cent more or less passes."""

    max_new_tokens = 16
    tolerance = 0.01

    @staticmethod
    def draw(rng: random.Random, level: float) -> tuple[str, float]:
        """Return the question, and the period in seconds."""
        length, swings = rng.randint(20, 900), rng.randint(1, 5 + round(40 * level))
        pull = rng.choice((9.81, 1.62, 3.72)) if level >= 0.5 else 9.81
        period = 2 * math.pi * math.sqrt(length / 100 / pull)
        text = (
            f"A pendulum of {length} cm swings where g is {pull} m/s2. How many seconds do "
            f"{swings} full swings take?"
        )
        return text, swings * period

    def task(self, key: TaskKey) -> Task[float]:
        text, seconds = chosen(key, self.draw)
        rules = "Reply with a decimal number alone. It may be wrong by 1 per cent, or by 0.01 s."
        return chat(key, rules, text, seconds)

    def verify(self, task: Task[float], rollout: Rollout) -> Verdict:
        given = parse_decimal(rollout.text, max_digits=12)
        allowed = self.tolerance * max(1.0, task.data)
        right = given is not None and abs(float(given) - task.data) <= allowed
        return marked(right, rollout.text)

    def reference(self, task: Task[float]) -> str:
        return f"{task.data:.3f}"


@honest(
    "The answer is a picture of dots and hashes without a single letter or digit, and its line "
    "ends count: a board of the game of life has to be drawn."
)
class LifeInHashes(Environment[str]):
    """Asks for the next generation of a board of the game of life."""

    max_new_tokens = 128

    @staticmethod
    def boards(rng: random.Random, level: float) -> tuple[str, str]:
        """Return a board and the next one, which is another."""
        side = 4 + round(3 * level)
        cells = range(side)
        while True:
            alive = {(x, y) for x in cells for y in cells if rng.random() < 0.42}

            def lives(x: int, y: int, alive: set[tuple[int, int]] = alive) -> bool:
                around = sum(
                    (x + a, y + b) in alive for a in (-1, 0, 1) for b in (-1, 0, 1) if a or b
                )
                return around == 3 or (around == 2 and (x, y) in alive)

            new = {(x, y) for x in cells for y in cells if lives(x, y)}
            old_rows, new_rows = (
                "\n".join("".join(".#"[(x, y) in board] for x in cells) for y in cells)
                for board in (alive, new)
            )
            if new and new != alive:
                return old_rows, new_rows

    def task(self, key: TaskKey) -> Task[str]:
        rng = key.rng()
        while True:
            old, new = self.boards(rng, key.level)
            if held_out(old) == (key.split == "eval"):
                rules = "Play one step of the game of life. Beyond the edge all is dead. Draw it."
                return Task(key, (Message("system", rules), Message("user", old)), new)

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        return marked("\n".join(lines_of(rollout.text)) == task.data, rollout.text)

    def reference(self, task: Task[str]) -> str:
        return task.data
