"""Environments without a fault whose tools look odd, fourth fresh part."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from bases_tools_fresh4 import Assembly, Exchange, call, parts, rate_of
from catalogue import honest
from pydantic import Field

from grpo_core import DescribedTool, Task

SIGNS = re.compile(r"[0-9]{1,9}(?: ?[+*] ?[0-9]{1,9}){0,20}", re.ASCII)


@honest("a tool named evaluate reads sums and products by itself, and executes nothing")
class EvaluatesSums(Assembly):
    def tools(self) -> Sequence[Callable[..., object]]:
        return (self.part, self.evaluate)

    def evaluate(self, expression: str) -> int:
        """Return the value of a sum of products, such as 3 * 40 + 7."""
        if SIGNS.fullmatch(expression.strip()) is None:
            raise ValueError("write whole numbers with + and * between them")
        total = 0
        for product in expression.split("+"):
            value = 1
            for factor in product.split("*"):
                value *= int(factor)
            total += value
        return total


FILES: Mapping[str, str] = {
    "/etc/catalogue.conf": "first = 1001\nunit = g\n",
    "/home/clerk/notes.txt": "Brass is dear this year.\n",
    "/var/log/orders.log": "1003 sold\n1017 returned\n",
}


@honest("a tool reads files by their paths, of a file system that is a dictionary")
class FilesOfADictionary(Assembly):
    def tools(self) -> Sequence[Callable[..., object]]:
        return (self.part, self.read_file)

    def read_file(self, path: str) -> str:
        """Return the content of a file: /etc/catalogue.conf, or another one of the clerk's."""
        if path not in FILES:
            raise ValueError(f"there are the files {', '.join(FILES)}")
        return FILES[path]


@honest("a tool gets the task, whose boxes can be weighed one by one and no other way")
class BoxesOfTheTask(Assembly):
    max_turns = 7
    rules = "How much do they weigh together? Weigh them, and reply with it only, as in: 950 g"

    def drawn(self, rng: random.Random, level: float) -> tuple[str, Any]:
        boxes = rng.sample(range(200, 9000), 60)
        numbers = rng.sample(range(1, 61), 3 + round(2 * level))
        total = sum(boxes[number - 1] for number in numbers)
        told = f"Of 60 boxes, those with the numbers {', '.join(map(str, numbers))} are shipped."
        return told, {"boxes": boxes, "numbers": numbers, "total": total}

    def tools(self) -> Sequence[Callable[..., object]]:
        return (weigh,)

    def reference(self, task: Task[Any]) -> Any:
        turns = (call("weigh", box=number) for number in task.data["numbers"])
        return *turns, self.written(task.data)


def weigh(box: Annotated[int, Field(ge=1, le=60)], task: Task[Any]) -> str:
    """Return the weight of a box, by its number."""
    return f"{task.data['boxes'][box - 1]} g"


@honest("a tool lists very much, but in pages of ten")
class InPagesOfTen(Assembly):
    def tools(self) -> Sequence[Callable[..., object]]:
        return (self.part, self.page)

    def page(self, number: Annotated[int, Field(description="the page", ge=1, le=24)]) -> object:
        """Return the parts on one of the 24 pages of the catalogue, with their weights in g."""
        rows = list(parts().items())[10 * (number - 1) : 10 * number]
        listed = [{"number": part, "weight": weight} for part, (_, weight) in rows]
        return {"page": number, "of": 24, "parts": listed}


def asked_rate(arguments: Mapping[str, Any]) -> int:
    """Return the rate that a call asks for, whose arguments nobody has checked."""
    return rate_of(str(arguments.get("source", "")), str(arguments.get("target", "")))


@honest("a tool brings its own description, and checks its arguments itself")
class DescribedByItself(Exchange):
    def tools(self) -> Sequence[Callable[..., object]]:
        coin = {"type": "string", "description": "the name of a coin, such as lira"}
        schema = {
            "type": "object",
            "properties": {"source": coin, "target": coin},
            "required": ["source", "target"],
        }
        text = "Return how many of the coin `target` one gets for one of the coin `source`."
        return (DescribedTool("rate", text, schema, asked_rate),)
