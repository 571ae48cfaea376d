"""Tools without a fault that look odd, fifth fresh part."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import Any

from bases_asked_fresh5 import Cargo
from bases_state_fresh5 import COUNTRIES, Parcels, called, postage_of
from catalogue import honest

from grpo_core import Task

SIGNS: dict[str, Callable[[int, int], int]] = {
    "+": lambda one, other: one + other,
    "-": lambda one, other: one - other,
    "*": lambda one, other: one * other,
}


def stack_machine(program: str) -> str:
    """Run a program of a stack machine, such as "12 31 * 7 +", and return what is on its stack.

    Its words are whole numbers of at most nine digits, + - and *.
    """
    stack: list[int] = []
    words = program.split()
    if len(program) > 200:
        raise ValueError("a program has at most 200 characters")
    for word in words:
        if word in SIGNS and len(stack) > 1:
            other, one = stack.pop(), stack.pop()
            stack.append(SIGNS[word](one, other))
        elif re.fullmatch(r"-?[0-9]{1,9}", word, re.ASCII):
            stack.append(int(word))
        else:
            raise ValueError(f"{word[:20]!r} is no number, or there are no two numbers for it")
        if abs(stack[-1]) > 10**15:
            raise ValueError("the numbers become too large")
    return " ".join(map(str, stack)) or "the stack is empty"


@honest("a tool runs programs that the policy writes: those of a machine of its own, with limits")
class StackMachine(Cargo):
    max_turns = 4
    max_new_tokens = 160

    def made(self, rng: random.Random, level: float) -> tuple[str, Any]:
        question, total = super().made(rng, level)
        found = re.findall(r"(\d+) sacks of \w+ of (\d+) kg", question)
        return question, {"sacks": found, "total": total}

    def tools(self) -> Sequence[Callable[..., object]]:
        return (stack_machine,)

    def right(self, data: Any, text: str) -> bool:
        return super().right(data["total"], text)

    def solution(self, data: Any) -> str:
        return super().solution(data["total"])

    def reference(self, task: Task[Any]) -> Any:
        products = " ".join(f"{count} {each} *" for count, each in task.data["sacks"])
        return called("stack_machine", program=f"{products} + +"), self.solution(task.data)


WEIGHTS = range(100, 10_001, 100)


@honest("a tool returns a table of 3,000 characters, which is all that there is")
class TariffInFull(Parcels):
    """The policy looks for the row of its parcel."""

    def tools(self) -> Sequence[Callable[..., object]]:
        return (self.tariff,)

    def tariff(self, country: str) -> str:
        """Return the tariff of a country: what parcels cost up to each weight."""
        if country not in COUNTRIES:
            raise ValueError(f"parcels go to {', '.join(COUNTRIES)}")
        rows = (f"up to {grams:>5} g: {postage_of(country, grams):>6} ct" for grams in WEIGHTS)
        return "\n".join((f"Postage to {country}", *rows))

    def reference(self, task: Task[Any]) -> Any:
        turns = (called("tariff", country=country) for country, _ in task.data["parcels"])
        return *turns, self.solution(task.data)
