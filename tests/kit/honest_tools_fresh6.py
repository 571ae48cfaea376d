"""Environments without a fault whose tools look odd, sixth fresh part."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from bases_state_fresh6 import Riders, call
from bases_talk_fresh6 import Stones
from catalogue import honest
from pydantic import Field

from grpo_core import Message, Task

SUM = re.compile(r"[0-9]{1,6}( ?[+*-] ?[0-9]{1,6}){0,20}", re.ASCII)


@honest("a tool computes expressions that the policy writes, by a small parser of its own")
class RidersWithACalculator(Riders):
    max_turns = 9

    def tools(self) -> Sequence[Callable[..., object]]:
        return (self.ride, self.calculate)

    def calculate(self, expression: str) -> int:
        """Return the value of an expression of whole numbers with +, - and *, as in 3 * 7 + 12."""
        text = expression.strip()
        if len(text) > 200 or not SUM.fullmatch(text):
            raise ValueError("write at most 21 whole numbers with +, - or * between them")
        terms = re.findall(r"([+-]?) ?([0-9]+(?: ?\* ?[0-9]+)*)", text)
        values = (math.prod(map(int, product.split("*"))) for _, product in terms)
        return sum(
            -one if sign == "-" else one for (sign, _), one in zip(terms, values, strict=True)
        )

    def reference(self, task: Task[Any]) -> Any:
        *calls, last = super().reference(task)
        told = " + ".join(map(str, task.data["waits"]))
        return *calls, call("calculate", expression=told), last


Number = Annotated[int, Field(description="the number of a stone, from 1", ge=1, le=6)]


@honest("a tool reads the hidden weights, of which it tells the sum of any two")
class StonesByATool(Stones):
    max_new_tokens = 120

    def posed(self, rng: random.Random, level: float) -> tuple[str, Any]:
        words, weights = super().posed(rng, level)
        return words.replace(": say, for instance, weigh 1 2. At", ". Use the tool. At"), weights

    def tools(self) -> Sequence[Callable[..., object]]:
        return (self.weigh,)

    def weigh(self, one: Number, other: Number, task: Task[Any]) -> str:
        """Return what two stones weigh together."""
        if one == other or max(one, other) > len(task.data):
            raise ValueError(f"name two of the {len(task.data)} stones")
        return f"{task.data[one - 1] + task.data[other - 1]} g"

    async def reply(self, task: Task[Any], messages: Sequence[Message]) -> Sequence[Message] | None:
        return await super(Stones, self).reply(task, messages)

    def reference(self, task: Task[Any]) -> Any:
        *turns, last = super().reference(task)
        pairs = (turn.split()[1:] for turn in turns)
        return *(call("weigh", one=int(one), other=int(other)) for one, other in pairs), last
