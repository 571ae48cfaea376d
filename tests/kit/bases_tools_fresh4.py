"""Sound environments of the fourth fresh part: tools."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

from bases_talk_fresh4 import Asked

from grpo_core import Task
from grpo_core.extract import parse_integer


def call(name: str, **arguments: Any) -> str:
    """Return a turn that calls a tool."""
    written = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>{written}</tool_call>"


PARTS = 240
MATERIALS = ("steel", "brass", "oak", "glass")


@cache
def parts() -> Mapping[int, tuple[str, int]]:
    """Return the material and the weight in g of each part of the catalogue, by its number."""
    rng = random.Random("parts of the fourth part")
    weights = rng.sample(range(100, 10_000), PARTS)
    return {1001 + place: (rng.choice(MATERIALS), weights[place]) for place in range(PARTS)}


class Assembly(Asked):
    """The weight of some parts, which a tool looks up; a number with its unit."""

    max_turns = 6
    max_new_tokens = 160
    rules = "How much do they weigh together? Look them up, and reply with it only, as in: 950 g"

    def drawn(self, rng: random.Random, level: float) -> tuple[str, Any]:
        numbers = rng.sample(sorted(parts()), 2 + round(2 * level))
        total = sum(parts()[number][1] for number in numbers)
        told = f"Parts {', '.join(map(str, numbers))} of the catalogue are put together."
        return told, {"numbers": numbers, "total": total}

    def tools(self) -> Sequence[Callable[..., object]]:
        return (self.part,)

    def part(self, number: int) -> object:
        """Return the material of a part and its weight in g, by its number in the catalogue."""
        material, weight = part_of(number)
        return {"material": material, "weight": weight}

    def written(self, data: Any) -> str:
        return f"{data['total']} g"

    def reference(self, task: Task[Any]) -> Any:
        turns = (call("part", number=number) for number in task.data["numbers"])
        return *turns, self.written(task.data)


def part_of(number: int) -> tuple[str, int]:
    """Return the material and the weight of a part."""
    if number not in parts():
        raise ValueError(f"parts have the numbers from 1001 to {1000 + PARTS}")
    return parts()[number]


COINS = ("lira", "dram", "kuna", "peso", "baht", "taka", "rial", "leva", "zloty", "krona")


@cache
def rates() -> Mapping[tuple[str, str], int]:
    """Return how many of the second coin one gets for one of the first."""
    rng = random.Random("rates of the fourth part")
    return {(one, two): rng.randint(13, 97) for one in COINS for two in COINS if one != two}


class Exchange(Asked):
    """What money becomes, which is exchanged twice; a tool knows the rates."""

    max_turns = 5
    max_new_tokens = 160
    rules = "How many has she at the end? Ask for the rates, and reply with the number only."

    def drawn(self, rng: random.Random, level: float) -> tuple[str, Any]:
        way, amount = rng.sample(COINS, 3 + round(level)), rng.randint(101, 9999)
        total = amount
        for pair in pairwise(way):
            total *= rates()[pair]
        told = ", then ".join(f"into {coin}" for coin in way[1:])
        return f"Ida changes {amount} {way[0]} {told}.", {"way": way, "total": total}

    def tools(self) -> Sequence[Callable[..., object]]:
        return (self.rate,)

    def rate(self, source: str, target: str) -> object:
        """Return how many of the coin `target` one gets for one of the coin `source`."""
        return rate_of(source, target)

    def accepts(self, data: Any, text: str) -> bool:
        return parse_integer(text, max_digits=15) == int(data["total"])

    def written(self, data: Any) -> str:
        return str(data["total"])

    def reference(self, task: Task[Any]) -> Any:
        pairs = pairwise(task.data["way"])
        turns = (call("rate", source=source, target=target) for source, target in pairs)
        return *turns, self.written(task.data)


def rate_of(source: str, target: str) -> int:
    """Return the rate of two coins."""
    if (source, target) not in rates():
        raise ValueError(f"the coins are {', '.join(COINS)}, and two different ones are needed")
    return rates()[source, target]
