"""Sound environments of one turn, of various subjects, on which faults are planted elsewhere."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import pairwise
from typing import Any, ClassVar, TypeVar

from grpo_core import Environment, Message, Reward, Rollout, Task, TaskKey, Verdict, held_out
from grpo_core.extract import parse_json, xml_tag

Drawn = TypeVar("Drawn")


def drawn_apart(
    key: TaskKey, draw: Callable[[random.Random], Drawn], asked: Callable[[Drawn], str]
) -> Drawn:
    """Return the first draw whose question belongs to the split of the key."""
    rng = key.rng()
    while True:
        drawn = draw(rng)
        if held_out(asked(drawn)) == (key.split == "eval"):
            return drawn


def asks(text: str) -> tuple[Message, ...]:
    """Return a prompt of one message."""
    return (Message("user", text),)


def spoken(rollout: Rollout) -> str:
    """Return the policy's last turn without white space around it."""
    return rollout.text.strip(" \t\r\n")


def paid(right: bool, answer: str) -> Verdict:
    """Return the verdict that pays 1 for a right answer and 0 for any other one."""
    return Verdict({"reward": Reward(float(right))}, passed=right, answer=answer[:100])


class PressureInPascals(Environment[str]):
    """Asks for the reading of a gauge in pascals, with all of its digits."""

    max_new_tokens = 16

    def task(self, key: TaskKey) -> Task[str]:
        def draw(rng: random.Random) -> tuple[str, int]:
            number = rng.randint(11, 999)
            if key.level < 0.5:
                unit, factor = rng.choice((("hPa", 100), ("kPa", 1000)))
                return f"{number} {unit}", number * factor
            unit, tenth = rng.choice((("bar", 10_000), ("MPa", 100_000)))
            return f"{number // 10}.{number % 10} {unit}", number * tenth

        reading, pascals = drawn_apart(key, draw, lambda drawn: drawn[0])
        question = (
            f"A gauge shows {reading}. How many pascals is that? "
            "Reply with the number alone, written out in digits."
        )
        return Task(key, asks(question), str(pascals))

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        answer = spoken(rollout)
        return paid(answer == task.data, answer)

    def reference(self, task: Task[str]) -> str:
        return task.data


class AtomsInAll(Environment[str]):
    """Asks how many atoms of an element some molecules have together."""

    max_new_tokens = 64

    def task(self, key: TaskKey) -> Task[str]:
        def draw(rng: random.Random) -> tuple[str, int]:
            counts = {"carbon": rng.randint(2, 9), "hydrogen": rng.randint(2, 20)}
            counts["oxygen"] = rng.randint(2, 6)
            element = rng.choice(list(counts))
            molecules = rng.randint(2, 5) if key.level < 0.5 else rng.randint(6, 40)
            formula = "".join(f"{name[0].upper()}{count}" for name, count in counts.items())
            return (
                f"{molecules} molecules of {formula}: how many {element} atoms?",
                molecules * counts[element],
            )

        question, atoms = drawn_apart(key, draw, lambda drawn: drawn[0])
        rule = " Reply with the number in a tag, as in <atoms>7</atoms>."
        return Task(key, asks(question + rule), str(atoms))

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        block = xml_tag(rollout.text, tag="atoms")
        answer = "" if block is None else block.content.strip(" \t\r\n")
        return paid(self.is_right(answer, task.data), answer)

    def is_right(self, answer: str, atoms: str) -> bool:
        """Return whether the text in the tag is the number of atoms."""
        return answer == atoms

    def reference(self, task: Task[str]) -> str:
        return f"<atoms>{task.data}</atoms>"


_LISTED_SURNAMES = """
    Abbot Adler Baker Birch Booth Carver Chase Cooper Dalton Dyer Ellis Farrow Fisher Gale Grover
    Harper Hobbs Ingram Jarvis Keller Knight Lamb Lowell Mason Mercer Nash Norris Oakley Parker
    Porter Quinn Reeves Rowan Sadler Sawyer Tanner Turner Usher Vance Weaver Wheeler Yates
"""
_SURNAMES = _LISTED_SURNAMES.split()


@dataclass(frozen=True, slots=True)
class Drawer:
    """Holds the cards of a drawer in their order, and the one that is at a wrong place."""

    cards: tuple[str, ...]
    misfiled: str


class DrawerOfCards(Environment[Drawer]):
    """Asks which card of a drawer breaks the alphabetical order, by its number."""

    max_new_tokens = 16

    def task(self, key: TaskKey) -> Task[Drawer]:
        size = 6 + round(4 * key.level)

        def draw(rng: random.Random) -> Drawer:
            while True:
                cards = sorted(rng.sample(_SURNAMES, size))
                taken, put = rng.randrange(size), rng.randrange(size)
                if abs(taken - put) >= 2:
                    misfiled = cards.pop(taken)
                    cards.insert(put, misfiled)
                    return Drawer(tuple(cards), misfiled)

        drawer = drawn_apart(key, draw, lambda drawn: " ".join(drawn.cards))
        listed = "\n".join(f"#{number} {card}" for number, card in enumerate(drawer.cards, 1))
        question = (
            f"The cards of a drawer:\n{listed}\nOne card is not at its place in the alphabet; "
            "all others are in order. Reply with its number alone, as in #12."
        )
        return Task(key, asks(question), drawer)

    def verify(self, task: Task[Drawer], rollout: Rollout) -> Verdict:
        answer = spoken(rollout)
        return paid(answer == self.reference(task), answer)

    def reference(self, task: Task[Drawer]) -> str:
        return f"#{task.data.cards.index(task.data.misfiled) + 1}"


def clock(minutes: int) -> str:
    """Return a time of the day as HH:MM."""
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


class RoomsInTheMorning(Environment[list[bool]]):
    """Asks which rooms are free for a meeting, as a JSON list of booleans."""

    max_new_tokens = 48
    rooms: ClassVar[Sequence[str]] = ("Alder", "Beech", "Cedar", "Elm", "Hazel", "Larch")

    def task(self, key: TaskKey) -> Task[list[bool]]:
        def draw(rng: random.Random) -> tuple[str, list[bool]]:
            start = 60 * rng.randint(10, 14) + 15 * rng.randrange(4)
            end = start + 15 * rng.randint(4, 8)
            free, lines = [], []
            for room in self.rooms[: 4 + round(2 * key.level)]:
                free.append(rng.random() < 0.5)
                away, length = 15 * rng.randint(1, 4), 15 * rng.randint(2, 6)
                first = (
                    rng.choice((end + away, start - away - length))
                    if free[-1]
                    else rng.choice((end - 15, start + 15 - length))
                )
                lines.append(f"{room} is taken from {clock(first)} to {clock(first + length)}.")
            return f"A meeting lasts from {clock(start)} to {clock(end)}. " + " ".join(lines), free

        facts, free = drawn_apart(key, draw, lambda drawn: drawn[0])
        question = (
            f"{facts} For each room in this order, is it free for the whole meeting? "
            "Reply with a JSON list of true and false and nothing else."
        )
        return Task(key, asks(question), free)

    def verify(self, task: Task[list[bool]], rollout: Rollout) -> Verdict:
        answer = spoken(rollout)
        parsed = parse_json(answer, max_chars=400, max_depth=1)
        return paid(parsed is not None and self.is_right(parsed.value, task.data), answer)

    def is_right(self, value: Any, free: list[bool]) -> bool:
        """Return whether a JSON value is the list that is asked for."""
        flags = isinstance(value, list) and all(isinstance(flag, bool) for flag in value)
        return flags and value == free

    def reference(self, task: Task[list[bool]]) -> str:
        return json.dumps(task.data)


class TramByMinutes(Environment[str]):
    """Asks for the stops of a tram line in the order of travel, as codes joined by hyphens."""

    max_new_tokens = 48

    def task(self, key: TaskKey) -> Task[str]:
        size = 5 + round(3 * key.level)

        def draw(rng: random.Random) -> dict[str, int]:
            letters = rng.sample("ABCDEFGHKLMNPQRSTUVWXYZ", 2 * size)
            codes = ["".join(pair) for pair in zip(letters[::2], letters[1::2], strict=True)]
            return dict(zip(codes, rng.sample(range(2, 60), size), strict=True))

        minutes = drawn_apart(key, draw, str)
        listed = ", ".join(f"{code} after {minute} minutes" for code, minute in minutes.items())
        question = (
            f"A tram leaves the depot and stops at {listed}. Reply with the codes of the stops in "
            "the order of travel, joined by hyphens, and nothing else."
        )
        return Task(key, asks(question), "-".join(sorted(minutes, key=minutes.__getitem__)))

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        answer = spoken(rollout)
        return paid(answer == task.data, answer)

    def reference(self, task: Task[str]) -> str:
        return task.data


_LISTED_FOODS = """
    almonds apples barley basil beans butter carrots celery cheese cream dill eggs fennel flour
    garlic honey leeks lentils milk mint mustard oats onions parsley pears pepper rice sugar
"""
_FOODS = _LISTED_FOODS.split()


class PantryList(Environment[tuple[str, ...]]):
    """Asks what has to be bought for a recipe; a last line "Buy: ..." names it in any order.

    Parts: form 0.1, there is such a line; right 0.9, it names what is missing and nothing else.
    """

    parts: ClassVar[Mapping[str, float]] = {"form": 0.1, "right": 0.9}
    max_new_tokens = 128

    def task(self, key: TaskKey) -> Task[tuple[str, ...]]:
        size = 6 + round(4 * key.level)

        def draw(rng: random.Random) -> tuple[list[str], list[str], tuple[str, ...]]:
            recipe = rng.sample(_FOODS, size)
            missing = set(rng.sample(recipe, rng.randint(2, size - 2)))
            others = [food for food in _FOODS if food not in recipe]
            pantry = [food for food in recipe if food not in missing] + rng.sample(others, 3)
            rng.shuffle(pantry)
            return recipe, pantry, tuple(food for food in recipe if food in missing)

        recipe, pantry, missing = drawn_apart(key, draw, str)
        question = (
            f"A recipe needs {', '.join(recipe)}. The pantry has {', '.join(pantry)}. What has to "
            'be bought? End with a line such as "Buy: salt, thyme" that names it all.'
        )
        return Task(key, asks(question), missing)

    def verify(self, task: Task[tuple[str, ...]], rollout: Rollout) -> Verdict:
        foods = self.bought(spoken(rollout))
        right = foods is not None and sorted(foods) == sorted(task.data)
        return Verdict(
            {"form": Reward(float(foods is not None)), "right": Reward(float(right))},
            passed=right,
            answer=None if foods is None else ", ".join(foods),
        )

    def bought(self, text: str) -> list[str] | None:
        """Return the foods that the last line names; None if it is no such line."""
        line = text[text.rfind("\n") + 1 :]
        if not line.startswith("Buy: ") or len(line) > 300:
            return None
        foods = line.removeprefix("Buy: ").split(", ")
        return foods if all(re.fullmatch("[a-z]{1,20}", food) for food in foods) else None

    def reference(self, task: Task[tuple[str, ...]]) -> str:
        return f"Buy: {', '.join(task.data)}"


_LISTED_ROCKS = """
    basalt chalk chert clay coal dolomite flint gneiss granite gravel limestone marl sandstone
    schist shale slate
"""
_ROCKS = _LISTED_ROCKS.split()


class LayersOfRock(Environment[tuple[str, ...]]):
    """Asks for the layers of a cliff from top to bottom, with commas between them.

    How many pairs of layers are in the right order is only logged.
    """

    max_new_tokens = 64

    def task(self, key: TaskKey) -> Task[tuple[str, ...]]:
        size = 4 + round(3 * key.level)
        layers = drawn_apart(key, lambda rng: tuple(rng.sample(_ROCKS, size)), " ".join)
        clues = [f"{upper} lies directly above {lower}" for upper, lower in pairwise(layers)]
        key.rng("clues").shuffle(clues)
        question = (
            f"In a cliff {', '.join(clues)}. Reply with the layers from top to bottom, with commas "
            "between them, and nothing else."
        )
        return Task(key, asks(question), layers)

    def verify(self, task: Task[tuple[str, ...]], rollout: Rollout) -> Verdict:
        answer = spoken(rollout)
        right = answer == ", ".join(task.data)
        return Verdict(
            {"reward": Reward(float(right))},
            passed=right,
            answer=answer[:100],
            metrics={"pairs": self.pairs(answer, task.data)},
        )

    def pairs(self, answer: str, layers: tuple[str, ...]) -> float:
        """Return the share of pairs that stand in the right order; 0 for other layers."""
        named = answer.split(", ") if len(answer) < 200 else []
        if sorted(named) != sorted(layers):
            return 0.0
        places = [layers.index(layer) for layer in named]
        return share_in_order(places)

    def reference(self, task: Task[tuple[str, ...]]) -> str:
        return ", ".join(task.data)


def share_in_order(places: Sequence[int]) -> float:
    """Return the share of all pairs of numbers that ascend."""
    size = len(places)
    ascending = sum(places[i] < places[j] for i in range(size) for j in range(i + 1, size))
    return ascending / max(1, size * (size - 1) // 2)


class PermitWithItsDay(Environment[str]):
    """Asks how many days a parking permit is still valid, on a day that the prompt names."""

    max_new_tokens = 16

    def task(self, key: TaskKey) -> Task[str]:
        def draw(rng: random.Random) -> tuple[str, int]:
            today = date(2019, 1, 1) + timedelta(rng.randrange(3000))
            left = rng.randint(20, 90) if key.level < 0.5 else rng.randint(200, 900)
            return f"Today is {today}. A permit is valid until {today + timedelta(left)}.", left

        facts, left = drawn_apart(key, draw, lambda drawn: drawn[0])
        question = " How many days from today is that? Reply with the number alone."
        return Task(key, asks(facts + question), str(left))

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        answer = spoken(rollout)
        return paid(answer == task.data, answer)

    def reference(self, task: Task[str]) -> str:
        return task.data
