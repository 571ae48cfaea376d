"""Sound environments of the fifth fresh part: tools and episodes."""

from __future__ import annotations

import json
import random
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, ClassVar

from bases_asked_fresh5 import Posed, judged

from grpo_core import (
    Environment,
    Episode,
    Message,
    Rollout,
    Task,
    TaskKey,
    ToolEpisode,
    Verdict,
    held_out,
    tool,
    tools_of,
)

COUNTRIES = (
    "Norway",
    "Chile",
    "Japan",
    "Kenya",
    "Malta",
    "Nepal",
    "Peru",
    "Spain",
    "Togo",
    "Yemen",
)


@cache
def tariffs() -> Mapping[str, tuple[int, int]]:
    """Return what a parcel costs in each country, in cents: any, and each 100 g of it."""
    rng = random.Random("tariffs of the fifth part")
    return {name: (rng.randint(301, 1499), rng.randint(17, 199)) for name in COUNTRIES}


def postage_of(country: str, grams: int) -> int:
    """Return the postage of a parcel in cents."""
    if country not in tariffs() or not 100 <= grams <= 20_000:
        raise ValueError(f"parcels of 100 to 20000 g go to {', '.join(COUNTRIES)}")
    base, each = tariffs()[country]
    return base + each * -(-grams // 100)


def called(name: str, **arguments: Any) -> str:
    """Return a turn that calls a tool."""
    body = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>{body}</tool_call>"


class Parcels(Posed):
    """The postage of some parcels, which a tool knows; a number with its unit."""

    max_turns = 7
    max_new_tokens = 160

    def made(self, rng: random.Random, level: float) -> tuple[str, Any]:
        countries = rng.sample(COUNTRIES, 2 + round(2 * level))
        parcels = [(country, rng.randint(120, 9999)) for country in countries]
        told = ", ".join(f"{grams} g to {country}" for country, grams in parcels)
        question = (
            f"What do these parcels cost together: {told}? Look each up, and then reply with the "
            "number and its unit only, as in: 4310 ct"
        )
        total = sum(postage_of(country, grams) for country, grams in parcels)
        return question, {"parcels": parcels, "total": total}

    def tools(self) -> Sequence[Callable[..., object]]:
        return (self.postage,)

    def postage(self, country: str, grams: int) -> object:
        """Return the postage of a parcel in cents, by its country and its weight in g."""
        return {"cents": postage_of(country, grams)}

    def solution(self, data: Any) -> str:
        return f"{data['total']} ct"

    def reference(self, task: Task[Any]) -> Any:
        parcels = task.data["parcels"]
        turns = (called("postage", country=country, grams=grams) for country, grams in parcels)
        return *turns, self.solution(task.data)


Held = tuple[int, ...]
ORDER = re.compile(r"(fill|empty) ([ABC])|pour ([ABC]) ([ABC])", re.ASCII)


def handled(sizes: Held, held: Held, order: str) -> Held:
    """Return what the jugs hold after an order."""
    found, new = ORDER.fullmatch(order.strip()), list(held)
    if found is None:
        return held
    if found[1]:
        new["ABC".index(found[2])] = sizes["ABC".index(found[2])] if found[1] == "fill" else 0
    else:
        source, to = "ABC".index(found[3]), "ABC".index(found[4])
        moved_on = 0 if source == to else min(held[source], sizes[to] - held[to])
        new[source] -= moved_on
        new[to] += moved_on
    return tuple(new)


@lru_cache(maxsize=64)
def reached(sizes: Held) -> Mapping[Held, tuple[str, ...]]:
    """Return the fewest orders that lead to each state of the jugs, of at most eight."""
    pairs = [f"pour {one} {two}" for one in "ABC" for two in "ABC" if one != two]
    words = [f"{verb} {jug}" for verb in ("fill", "empty") for jug in "ABC"] + pairs
    found: dict[Held, tuple[str, ...]] = {(0, 0, 0): ()}
    ways = deque(found)
    while ways:
        held = ways.popleft()
        for word in words if len(found[held]) < 8 else ():
            if (new := handled(sizes, held, word)) not in found:
                found[new] = (*found[held], word)
                ways.append(new)
    return found


class JugsEpisode(Episode):
    """Three jugs."""

    def __init__(self, task: Task[Any]) -> None:
        self.task, self.held, self.heard, self.fills = task, self.start(task), 0, 0

    def start(self, task: Task[Any]) -> Held:
        return (0, 0, 0)

    async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        self.carry_out(messages[-1].content)
        return None if self.done() else (Message("user", self.told()),)

    def carry_out(self, text: str) -> None:
        self.heard += 1
        self.fills += text.strip().startswith("fill ")
        self.held = handled(self.task.data["sizes"], self.held, text)

    def done(self) -> bool:
        return bool(tuple(self.held) == self.task.data["goal"])

    def told(self) -> str:
        return ", ".join(f"{jug} {held}" for jug, held in zip("ABC", self.held, strict=True))

    async def verdict(self, rollout: Rollout) -> Verdict:
        turns = [message.content for message in rollout.messages if message.role == "assistant"]
        for text in turns[self.heard :]:
            self.carry_out(text)
        return self.judged(self.done() and self.fills <= self.task.data["fills"])

    def judged(self, right: bool) -> Verdict:
        return judged(right, self.told())


class Jugs(Environment[Any]):
    """An episode: measure an amount of water with three jugs."""

    max_turns = 12
    max_new_tokens = 12
    timeout_seconds = 2.0
    replayable = True
    attempt: ClassVar[type[JugsEpisode]] = JugsEpisode

    def task(self, key: TaskKey) -> Task[Any]:
        rng = key.rng()
        while True:
            sizes = tuple(rng.sample(range(7, 21 + round(8 * key.level)), 3))
            depth = 5 + round(3 * key.level)
            goals = [held for held, words in reached(sizes).items() if len(words) == depth]
            goal = rng.choice([held for held in goals if min(held[:2]) > 0] or [(0, 0, 0)])
            fills = sum(word.startswith("fill") for word in reached(sizes)[goal]) + 1
            told = ", ".join(f"{jug} {held}" for jug, held in zip("ABC", goal, strict=True))
            question = (
                f"Jug A holds {sizes[0]} litres, B {sizes[1]} and C {sizes[2]}, and they are empty. "
                f"In the end they shall hold {told}. Fill jugs at most {fills} times. Give one "
                "order in each turn, such as: fill A, empty B, pour A C."
            )
            if any(goal) and held_out(question) == (key.split == "eval"):
                data = {"sizes": sizes, "goal": goal, "fills": fills}
                return Task(key, (Message("user", question),), data)

    def episode(self, task: Task[Any]) -> Episode:
        return self.attempt(task)

    def reference(self, task: Task[Any]) -> Any:
        return reached(task.data["sizes"])[task.data["goal"]]


FOODS = ("flour", "sugar", "butter", "cocoa", "almonds", "raisins", "oats", "honey", "coconut")


class Bowl(ToolEpisode[Any]):
    """A bowl on a balance."""

    def __init__(self, task: Task[Any]) -> None:
        super().__init__(task)
        self.bowl: dict[str, int] = {}

    @tool
    def weigh(self, food: str, grams: int) -> str:
        """Put so many grams of a food into the bowl, in addition to what is in it."""
        if food not in FOODS or not 0 < grams < 100_000:
            raise ValueError(f"there are {', '.join(FOODS)}, and less than 100 kg of each")
        self.put(food, grams)
        return self.told()

    def put(self, food: str, grams: int) -> None:
        self.bowl[food] = self.bowl.get(food, 0) + grams

    @tool
    def remove(self, food: str) -> str:
        """Take a food out of the bowl, all of it."""
        self.bowl.pop(food, None)
        return self.told()

    def told(self) -> str:
        return ", ".join(f"{food} {grams} g" for food, grams in self.bowl.items()) or "empty"

    async def verdict(self, rollout: Rollout) -> Verdict:
        return judged(self.bowl == self.task.data, self.told())


class Baking(Environment[Any]):
    """An episode with tools: weigh what a recipe takes for another number of people."""

    max_turns = 8
    max_new_tokens = 160
    replayable = True
    attempt: ClassVar[type[Bowl]] = Bowl

    def task(self, key: TaskKey) -> Task[Any]:
        rng = key.rng()
        while True:
            few, many = rng.sample(range(3, 12), 2)
            foods = {
                food: rng.randint(7, 60) for food in rng.sample(FOODS, 3 + round(3 * key.level))
            }
            told = ", ".join(f"{few * each} g of {food}" for food, each in foods.items())
            question = (
                f"For {few} people the recipe takes {told}. Weigh into the bowl what it takes for "
                f"{many}, and then say that you are done."
            )
            if held_out(question) == (key.split == "eval"):
                data = {food: many * each for food, each in foods.items()}
                return Task(key, (Message("user", question),), data)

    def tools(self) -> Sequence[Callable[..., object]]:
        return tools_of(self.attempt)

    def episode(self, task: Task[Any]) -> Episode:
        return self.attempt(task)

    def reference(self, task: Task[Any]) -> Any:
        turns = (called("weigh", food=food, grams=grams) for food, grams in task.data.items())
        return *turns, "I am done."
