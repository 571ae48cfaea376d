"""Faults of tools: what they execute, what they tell, how they are described, what they keep."""

from __future__ import annotations

import functools
import json
import math
import os
import random
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from bases_fresh import PRICES, Asks, Shop, kept_back, price, scrambled
from catalogue import fault

from grpo_core import Message, Task, TaskKey
from grpo_core.protocol.tools import answers

RATES = {"crown": 17, "ducat": 41, "florin": 29, "groat": 3, "thaler": 53}

# What tools execute


@fault("a tool puts its argument into a command line", "tool.execute")
class FactorsByShell(Shop):
    def tools(self) -> Sequence[Callable[..., object]]:
        return (price, factors)


def factors(number: str) -> str:
    """Return the prime factors of a number."""
    run = subprocess.run(f"factor {number}", shell=True, capture_output=True, timeout=1)
    return run.stdout.decode(errors="replace").strip() or "not a number"


@fault("a tool puts its argument into a command line", "tool.execute")
class CalendarByPopen(Shop):
    def tools(self) -> Sequence[Callable[..., object]]:
        return (price, calendar_of)


def calendar_of(year: str) -> str:
    """Return on which weekday a year begins."""
    with os.popen(f"date -d {year}-01-01 +%A") as pipe:
        return pipe.read().strip()


@fault("a tool runs the program that it is told", "tool.execute")
class AnyProgram(Shop):
    def tools(self) -> Sequence[Callable[..., object]]:
        return (price, run_program)


def run_program(command: str) -> str:
    """Run a command such as "seq 3" and return what it prints."""
    run = subprocess.run(shlex.split(command), capture_output=True, timeout=1)
    return run.stdout.decode(errors="replace")[:500]


@fault("a tool evaluates a condition", "tool.execute")
class FilterByCondition(Shop):
    def tools(self) -> Sequence[Callable[..., object]]:
        return (things_where,)


def things_where(condition: str) -> list[str]:
    """Return the things for which a condition holds, such as "price > 100"."""
    return [
        f"{thing}: {cost}"
        for thing, cost in PRICES.items()
        if eval(condition, {"__builtins__": {}}, {"price": cost, "name": thing})
    ]


@fault("a tool evaluates a formula", "tool.execute")
class FormulaWithMath(Shop):
    def tools(self) -> Sequence[Callable[..., object]]:
        return (price, formula)


def formula(text: str) -> float:
    """Return the value of a formula such as "sqrt(2) * 3"."""
    return float(eval(text, vars(math).copy()))


@fault("a tool compiles a function", "tool.execute")
class MapsAFunction(Shop):
    def tools(self) -> Sequence[Callable[..., object]]:
        return (price, apply_to_prices)


def apply_to_prices(function: str) -> dict[str, object]:
    """Apply a function to each price, such as "lambda price: price * 2"."""
    space: dict[str, Any] = {}
    exec(f"function = {function}", space)
    return {thing: space["function"](cost) for thing, cost in PRICES.items()}


# What tools tell


class _Facts(Asks):
    """Questions on a table that a tool can search."""

    max_turns = 5
    levels = False
    rows: ClassVar[list[dict[str, str]]] = [
        {
            "question": f"How many {thing} does shelf {shelf} hold?",
            "answer": str(100 + (shelf * 7919 + number * 104_729) % 8999),
        }
        for number, thing in enumerate(("anvils", "bells", "cups", "drums", "fans"))
        for shelf in range(11, 90)
    ]

    def content(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        row = rng.choice(self.rows)
        return row["question"], row["answer"]

    def question(self, *content: Any) -> str:
        return f"{content[0]} Reply with digits only."

    def solution(self, *content: Any) -> str:
        return str(content[1])


@fault("a tool searches the rows with their answers", "tool.secret")
class SearchesItsRows(_Facts):
    """Retrieval over the very data set of the tasks."""

    def tools(self) -> Sequence[Callable[..., object]]:
        return (self.search,)

    def search(self, query: str) -> str:
        """Return the record that fits the query best."""
        words = set(re.findall(r"\w+", query.lower()))
        best = max(self.rows, key=lambda row: len(words & set(row["question"].lower().split())))
        return json.dumps(best)


@fault("a tool remembers the task that was made last", "tool.secret")
class HintsOfTheLastTask(Shop):
    last = ""

    def made(self, key: TaskKey, content: tuple[Any, ...]) -> Task[str]:
        task = super().made(key, content)
        self.last = task.data
        return task

    def tools(self) -> Sequence[Callable[..., object]]:
        return (price, self.hint)

    def hint(self) -> str:
        """Return a hint, for a policy that is stuck."""
        return f"The result has {len(self.last)} digits: {self.last}"


@fault("a tool that knows the task tells its answer", "tool.secret", "reply.secret")
class SettlesTheBill(Shop):
    """A tool of the task's own, that was meant to check the form of a bill."""

    def tools(self) -> Sequence[Callable[..., object]]:
        return (price, self.check_bill)

    def check_bill(self, amount: int) -> str:
        """Return whether an amount is a whole number above 0."""
        return "fine" if amount > 0 else "not above 0"

    async def reply(self, task: Task[str], messages: Sequence[Message]) -> Sequence[Message] | None:
        def check_bill(amount: int) -> str:
            return "right" if str(amount) == task.data else f"wrong: expected {task.data}"

        return answers([price, check_bill], messages[-1].content)


# How tools are described


@fault("a tool has no name", "tool.form")
class PartOfATool(Shop):
    """A function with some arguments filled in, which has no name of its own."""

    def tools(self) -> Sequence[Callable[..., object]]:
        return (functools.partial(price_in, rates=RATES),)


def price_in(thing: str, currency: str, rates: dict[str, int]) -> float:
    """Return the price of one thing in another currency."""
    return PRICES[thing] / rates[currency]


@fault("a parameter's type has no description", "tool.form")
class OwnTypeOfParameter(Shop):
    def tools(self) -> Sequence[Callable[..., object]]:
        return (price_of_line,)


class _Line:
    """A line of an order."""

    def __init__(self, thing: str, count: int) -> None:
        self.thing, self.count = thing, count


def price_of_line(line: _Line) -> int:
    """Return the price of a line of an order."""
    return PRICES[line.thing] * line.count


@fault("a tool has neither types nor description", "tool.form")
class BareTool(Shop):
    def tools(self) -> Sequence[Callable[..., object]]:
        def cost(t, n=1):  # type: ignore[no-untyped-def]
            return PRICES[t] * n

        return (cost,)


# What calls get


@fault("a tool's result is a generator", "tool.form")
class YieldsItsResults(Shop):
    def tools(self) -> Sequence[Callable[..., object]]:
        return (price, list_things)


def list_things(above: int) -> Iterator[str]:
    """Return the things that cost more than an amount."""
    for thing, cost in PRICES.items():
        if cost > above:
            yield thing


@fault("a tool fails when it is called rightly", "tool.form")
class LooksUpInCapitals(Shop):
    """The tool tidies its argument, and the table was never changed."""

    def tools(self) -> Sequence[Callable[..., object]]:
        return (price_upper,)


def price_upper(thing: str) -> int:
    """Return the price of one thing, such as "anvil"."""
    return PRICES[thing.strip().upper()]


@fault("a call of a tool may take for ever", "tool.form", "reply.hostile")
class PowersOfAnything(Shop):
    def tools(self) -> Sequence[Callable[..., object]]:
        return (price, last_digits)


def last_digits(base: int, exponent: int) -> int:
    """Return the last three digits of a power."""
    result = 1
    while exponent != 0:
        result = result * base % 1000
        exponent -= 1
    return result


@fault("a call of a tool may take for ever", "tool.form", "reply.hostile")
class SearchesByPattern(Shop):
    text = "a" * 40 + " " + " ".join(f"{thing} costs {cost}" for thing, cost in PRICES.items())

    def tools(self) -> Sequence[Callable[..., object]]:
        return (self.search,)

    def search(self, pattern: str) -> list[str]:
        """Return what a regular expression finds in the price list."""
        return [match.group() for match in re.finditer(pattern, self.text)][:10]


@fault("a tool waits for longer than the deadline", "tool.form")
class SlowShop(Shop):
    def tools(self) -> Sequence[Callable[..., object]]:
        return (slow_price,)


def slow_price(thing: str) -> int:
    """Return the price of one thing, from a slow warehouse."""
    time.sleep(3.0)
    return PRICES.get(thing, 0)


@fault("an own reader of calls raises", "tool.form", "reply.form")
class OwnReaderOfCalls(Shop):
    async def reply(self, task: Task[str], messages: Sequence[Message]) -> Sequence[Message] | None:
        said = messages[-1].content
        if "<tool_call>" not in said:
            return None
        call = json.loads(said.split("<tool_call>")[1].split("</tool_call>")[0])
        return (Message("tool", str(price(call["arguments"]["thing"]))),)


# The same again


@fault("all episodes share one cart", "reply.repeat")
class SharedCart(Shop):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cart: list[str] = []

    def tools(self) -> Sequence[Callable[..., object]]:
        return (price, self.put_into_cart)

    def put_into_cart(self, thing: str) -> str:
        """Put a thing into the cart and return what is in it."""
        self.cart = [*self.cart, thing][-20:]
        return f"{len(self.cart)} things, {sum(PRICES.get(one, 0) for one in self.cart)} in all"


@fault("a tool's result is drawn at random", "reply.repeat")
class WarehouseIsMoody(Shop):
    def tools(self) -> Sequence[Callable[..., object]]:
        return (price, in_stock)


def in_stock(thing: str) -> bool:
    """Return whether a thing is in stock."""
    return random.random() < 0.8


@fault("a tool tells the time", "reply.repeat")
class ReceiptWithTime(Shop):
    def tools(self) -> Sequence[Callable[..., object]]:
        return (dated_price,)


def dated_price(thing: str) -> dict[str, object]:
    """Return the price of a thing, and when it was asked for."""
    return {"price": PRICES.get(thing), "at": time.time()}


@fault("a tool takes from the task's data", "reply.repeat")
class TakesFromTheTask(Asks):
    """A pile of cards, from which a tool takes the upper one."""

    max_turns = 6

    def task(self, key: TaskKey) -> Task[Any]:
        rng = key.rng()
        while True:
            name = scrambled(rng, 6)
            if kept_back(name) == (key.split == "eval"):
                break
        cards = [rng.randrange(100, 1000) for _ in range(2 + round(2 * key.level))]
        call = '<tool_call>{"name": "take"}</tool_call>'
        text = f"Pile {name} has {len(cards)} cards. Take each by {call}; reply with their sum."
        return Task(key, (Message("user", text),), {"cards": cards, "sum": str(sum(cards))})

    async def reply(self, task: Task[Any], messages: Sequence[Message]) -> Sequence[Message] | None:
        def take() -> int:
            return int(task.data["cards"].pop())

        return answers([take], messages[-1].content)

    def verify(self, task: Task[Any], rollout: Any) -> Any:
        return self.paid(rollout.text.strip() == task.data["sum"], rollout.text)

    def reference(self, task: Task[Any]) -> Any:
        return task.data["sum"]
