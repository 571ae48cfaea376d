"""Planted faults of the fourth fresh part: tools."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bases_tools_fresh4 import PARTS, Assembly, Exchange, part_of, parts, rate_of
from catalogue import fault

from grpo_core import Task


@fault("a tool can hang", "tool.form", "tool.execute", "reply.hostile", "reply.ends", "reply.form")
class UpToTheLast(Assembly):
    """Parts are counted from the first to the last, which is never met if it comes before."""

    def tools(self) -> Sequence[Callable[..., object]]:
        return (self.part, self.between)

    def between(self, first: int, last: int) -> object:
        """Return the weight in g of all parts from the first to the last number together."""
        number, weight = first, 0
        while number != last + 1:
            weight += parts().get(number, ("", 0))[1]
            number += 1
        return weight


@fault("a tool draws at random", "reply.repeat")
class SomeSuppliers(Assembly):
    """Three suppliers of a part are named, and none is preferred."""

    suppliers = ("Ahlers", "Bosko", "Cramer", "Delfs", "Ekman", "Fries", "Gellert")

    def part(self, number: int) -> object:
        """Return the material of a part, its weight in g and who sells it, by its number."""
        material, weight = part_of(number)
        sold = ", ".join(random.sample(self.suppliers, 3))
        return {"material": material, "weight": weight, "sold by": sold}


def weight_of(number: int) -> int:
    f"""Return the weight in g of a part; parts have the numbers from 1001 to {1000 + PARTS}."""  # noqa: B021
    return part_of(number)[1]


@fault("a tool has no description", "tool.form")
class DescribedByAFormat(Assembly):
    """A docstring that begins with f is none."""

    def tools(self) -> Sequence[Callable[..., object]]:
        return (weight_of,)

    def reference(self, task: Task[Any]) -> Any:
        return self.written(task.data)


class Lookup:
    """Looks up a number in a table."""

    def __init__(self, table: Callable[[int], object]) -> None:
        self.table = table

    def __call__(self, number: int) -> object:
        """Return the weight of a part in g, by its number."""
        return self.table(number)


@fault("a tool has no name", "tool.form")
class ObjectAsATool(Assembly):
    """The tool is an object that can be called, and objects have no name."""

    def tools(self) -> Sequence[Callable[..., object]]:
        return (Lookup(lambda number: part_of(number)[1]),)

    def reference(self, task: Task[Any]) -> Any:
        return self.written(task.data)


async def rate(source: str, target: str) -> int:
    """Return how many of the coin `target` one gets for one of the coin `source`."""
    await asyncio.sleep(0)  # the server of the rates comes later
    return rate_of(source, target)


@fault("a tool is async", "tool.form", "declared.contract")
class RatesOfAServer(Exchange):
    """The tool is a function that is awaited, as whoever asks a server writes it."""

    def tools(self) -> Sequence[Callable[..., object]]:
        return (rate,)

    def reference(self, task: Task[Any]) -> Any:
        return self.written(task.data)


SHEETS = Path(__file__).with_name("sheets_fresh4")


@fault("a tool reads or writes any file", "tool.execute", "safety.files", "tool.secret")
class SheetOfAMaterial(Assembly):
    """The data sheet of a material is a file of that name, wherever it is."""

    def tools(self) -> Sequence[Callable[..., object]]:
        return (self.part, self.sheet)

    def sheet(self, material: str) -> str:
        """Return the data sheet of a material: steel, brass, oak or glass."""
        return (SHEETS / material.lower()).read_text(encoding="utf-8")


@fault("a tool remembers earlier attempts", "reply.repeat", "tool.secret")
class AskedBefore(Exchange):
    """The tool says whether a rate was asked before, so that nobody asks twice."""

    def __init__(self, config: Any = None, services: Any = None) -> None:
        super().__init__(config, services)
        self.asked: set[tuple[str, str]] = set()

    def rate(self, source: str, target: str) -> object:
        """Return how many of the coin `target` one gets for one of the coin `source`."""
        value, again = rate_of(source, target), (source, target) in self.asked
        self.asked.add((source, target))
        return f"{value} (you have asked this before)" if again else value


@fault("a tool returns more than a policy can read", "tool.form")
class AllOfAMaterial(Assembly):
    """All parts of a material are returned, of which most are cut off."""

    def tools(self) -> Sequence[Callable[..., object]]:
        return (self.part, self.made_of)

    def made_of(self, material: str) -> object:
        """Return all parts that are made of a material (steel, brass, oak or glass)."""
        known = [
            {"number": number, "material": made, "weight": weight, "unit": "g", "in stock": True}
            for number, (made, weight) in parts().items()
            if made == material
        ]
        if not known:
            raise ValueError("the materials are steel, brass, oak and glass")
        return known


@fault("a tool sees the answer", "tool.secret", "reply.secret")
class StillMissing(Assembly):
    """A tool says how much is missing to the whole, and so all of it to who has nothing."""

    def tools(self) -> Sequence[Callable[..., object]]:
        return (self.part, missing)


def missing(numbers: list[int], task: Task[Any]) -> str:
    """Return how many parts, and how much of their weight, is not yet in a list of numbers."""
    left = [number for number in task.data["numbers"] if number not in numbers]
    return f"{len(left)} parts, {sum(part_of(number)[1] for number in left)} g"
