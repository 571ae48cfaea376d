"""Environments without a fault whose tasks look odd, sixth fresh part."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

from bases_fresh6 import Carpet, Quiz
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


@honest("levels differ in the task's data alone: an estimate has to be nearer at a high level")
class EstimatesThatTighten(Quiz):
    """At first an estimate may be 5 % off, as is declared, and at the end one half percent."""

    tolerance = 0.05

    def task(self, key: TaskKey) -> Task[Any]:
        rng = TaskKey(key.env, key.split, key.index, key.seed).rng("estimate")
        while True:
            numbers = rng.randint(1201, 9899), rng.randint(1201, 9899)
            question = (
                f"Estimate {numbers[0]} x {numbers[1]} in your head, as exactly as you can: it may "
                "be off by 5 % at the very most, and often by less. Reply with one number only."
            )
            if held_out(question) == (key.split == "eval"):
                break
        product, percent = numbers[0] * numbers[1], 5 - 4.5 * key.level
        return Task(key, (Message("user", question),), (product, int(product * percent / 100)))

    def read(self, text: str) -> Any:
        return parse_integer(text, max_digits=12)

    def fits(self, truth: Any, answer: Any) -> bool:
        product, slack = truth
        return bool(abs(answer - product) <= slack)

    def reply_with(self, truth: Any) -> str:
        return str(truth[0])


def floor_of(flat: Any) -> str:
    """Return what is asked about a flat."""
    told = ", ".join(f"{a / 10:.1f} m by {b / 10:.1f} m" for a, b in flat)
    return f"Flat with rooms of {told}."


@cache
def flats(split: str) -> tuple[Any, ...]:
    """Return the flats of an agency for one split, each of them once."""
    rng = random.Random("agency")
    drawn = (
        tuple((rng.randint(21, 69), rng.randint(21, 69)) for _ in range(rng.randint(2, 5)))
        for _ in range(400)
    )
    return tuple(flat for flat in drawn if held_out(floor_of(flat)) == (split == "eval"))


@honest("the seed and the level change nothing: a catalogue with an end, each row of it once")
class FlatsOfACatalogue(Carpet):
    levels = False

    def size(self, split: str) -> int | None:
        return len(flats(split))

    def task(self, key: TaskKey) -> Task[Any]:
        flat = flats(key.split)[key.index]
        return Task(key, self.prompt(self.question(flat)), self.truth(flat))
