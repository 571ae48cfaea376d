"""Environments without a fault whose tasks look odd, sixth fresh part."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from typing import Any

from bases_fresh6 import WHITE, Carpet, Quiz
from catalogue import honest

from grpo_core import Message, Task, TaskKey, held_out
from grpo_core.extract import parse_integer

SIDES = ("north", "east", "south", "west")


@honest("every prompt names all four answers, so each is there as a word; none is more frequent")
class FacesWhichSide(Quiz):
    max_new_tokens = 8

    def draw(self, rng: random.Random, level: float) -> Any:
        turns = tuple(rng.choice(("left", "right", "round")) for _ in range(5 + round(9 * level)))
        return rng.choice(SIDES), turns

    def question(self, facts: Any) -> str:
        side, turns = facts
        return (
            f"A robot looks {side}. It turns {', '.join(turns)}. Which way does it look then? "
            "Reply with one word: north, east, south or west."
        )

    def truth(self, facts: Any) -> Any:
        side, turns = facts
        quarters = sum({"left": 3, "right": 1, "round": 2}[turn] for turn in turns)
        return SIDES[(SIDES.index(side) + quarters) % 4]


@honest("two tasks in a row ask opposite questions about the same things, so they look alike")
class OppositeQuestions(Quiz):
    def task(self, key: TaskKey) -> Task[Any]:
        pair, second = divmod(key.index, 2)
        rng = TaskKey(key.env, key.split, pair, key.seed, key.level).rng("pair")
        while True:
            count = 5 + round(5 * key.level)
            boxes = tuple(tuple(rng.sample(range(12, 98), 2)) for _ in range(count))
            volumes = [a * b for a, b in boxes]
            told = "\n".join(f"Box {at}: {a} by {b}" for at, (a, b) in enumerate(boxes, 1))
            if len(set(volumes)) == count and held_out(told) == (key.split == "eval"):
                break
        word, pick = ("smallest", min) if second else ("largest", max)
        question = (
            f"{told}\nWhat is the area of the box with the {word} area? Reply with the number only."
        )
        return Task(key, (Message("user", question),), pick(volumes))

    def read(self, text: str) -> Any:
        return parse_integer(text, max_digits=9)


@honest("the prompts of both levels are the same sort; at a high level more hidden cases are tried")
class FormulaOnMoreCases(Quiz):
    """The formula is a x + b; what is hidden is how many values of x are tried."""

    def task(self, key: TaskKey) -> Task[Any]:
        rng = TaskKey(key.env, key.split, key.index, key.seed).rng("formula")
        while True:
            a, b = rng.randint(2, 99), rng.randint(2, 99)
            xs = rng.sample(range(2, 60), 3)
            told = ", ".join(f"f({x}) = {a * x + b}" for x in xs)
            question = (
                f"For a linear function of whole numbers, {told}. Reply with the two numbers a and "
                "b of f(x) = a x + b, as in: 7 205"
            )
            if held_out(question) == (key.split == "eval"):
                break
        tried = [(x, a * x + b) for x in range(100, 102 + round(20 * key.level))]
        return Task(key, (Message("user", question),), tried)

    def read(self, text: str) -> Any:
        words = text.strip(WHITE).split(" ")
        numbers = [parse_integer(word, max_digits=6) for word in words[:3]]
        return None if len(words) != 2 or None in numbers else numbers

    def fits(self, truth: Any, answer: Any) -> bool:
        a, b = answer
        return all(a * x + b == y for x, y in truth)

    def reply_with(self, truth: Any) -> str:
        (x, y), (other, z) = truth[:2]
        a = (z - y) // (other - x)
        return f"{a} {y - a * x}"


@cache
def flats() -> tuple[Any, ...]:
    """Return all flats of an agency, each of them once."""
    rng = random.Random("agency")
    return tuple(
        tuple((rng.randint(21, 69), rng.randint(21, 69)) for _ in range(rng.randint(2, 5)))
        for _ in range(400)
    )


@honest("the seed and the level change nothing: a catalogue with an end, each row of it once")
class FlatsOfACatalogue(Carpet):
    levels = False

    def rows(self, split: str) -> list[Any]:
        return [row for row in flats() if held_out(self.question(row)) == (split == "eval")]

    def size(self, split: str) -> int | None:
        return len(self.rows(split))

    def facts(self, key: TaskKey) -> Iterator[Any]:
        yield self.rows(key.split)[key.index]
