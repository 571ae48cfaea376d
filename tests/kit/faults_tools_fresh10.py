"""Tools that cannot be called, that tell too much, or that change the process."""

import asyncio
import functools
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict

from bases_g3_fresh10 import (
    Apiary,
    ApiaryScale,
    Freight,
    FreightDesk,
    call_text,
    hive_weight,
    miles_to,
    rate_of,
)
from bases_g_fresh10 import Asked
from catalogue import fault

from grpo_core import Task


@fault("a tool changes the state of the process", "safety.state")
class ScaleWithAThermometer(ApiaryScale):
    """Reports the temperature with the weight; it is drawn, and the same for each hive."""

    def tools(self) -> Sequence[Callable[..., object]]:
        def hive_weight(hive: str, task: Task[Apiary]) -> dict[str, object]:
            """Weigh a hive and return its weight in kilograms, and the temperature there."""
            random.seed(f"{task.key.index} {hive}")
            degrees = random.randint(12, 34)
            weight = dict(task.data.weights).get(hive)
            return {"hive": hive, "weight": weight, "degrees": degrees}

        return [hive_weight]


@fault("a tool is async", "tool.form")
class ScaleOverTheRadio(ApiaryScale):
    """Waits for the scale, which once was reached by radio."""

    def tools(self) -> Sequence[Callable[..., object]]:
        @functools.wraps(hive_weight)
        async def weigh(hive: str, task: Task[Apiary]) -> str:
            await asyncio.sleep(0)
            return hive_weight(hive, task)

        return [weigh]


def order_sheet(task: Task[Freight]) -> dict[str, object]:
    """Show the sheet of the order, with the books that belong to it."""
    books = {"miles": dict(task.data.miles), "rates": dict(task.data.rates)}
    return {**asdict(task.data), **books, "cost": task.data.cost}


@fault("a tool sees the answer", "tool.secret", "reply.secret")
class FreightWithItsSheet(FreightDesk):
    """Has one tool that shows all that is known of the order."""

    def tools(self) -> Sequence[Callable[..., object]]:
        return [order_sheet]

    def reference(self, task: Task[Freight]) -> Sequence[str]:
        return (call_text("order_sheet"), self.written(self.right(task.data)))


@fault("tools are never asked", "tool.form", "declared.contract")
class ScaleInOneTurn(ApiaryScale):
    """Shall be answered at once, which keeps the attempts short."""

    max_turns = 1
    reference = Asked.reference


def _look_up(book: str, name: str, task: Task[Freight]) -> str:
    """Look up a name in one of the books."""
    return str(dict(getattr(task.data, book)).get(name, "unknown"))


@fault("tools are not functions", "tool.form")
class FreightByPartials(FreightDesk):
    """Makes both tools from one function, with the book filled in."""

    reference = Asked.reference

    def tools(self) -> Sequence[Callable[..., object]]:
        return [functools.partial(_look_up, "miles"), functools.partial(_look_up, "rates")]


def _reader(book: str) -> Callable[..., object]:
    """Return a tool that reads one of the books."""
    look = {"miles": miles_to, "rates": rate_of}[book]

    def read_book(name: str, task: Task[Freight]) -> str:
        return look(name, task)

    read_book.__doc__ = f"Look up a name in the book of {book}."
    return read_book


@fault("two tools have the same name", "tool.form")
class FreightOfTwoBooks(FreightDesk):
    """Makes a tool for each of the two books."""

    reference = Asked.reference

    def tools(self) -> Sequence[Callable[..., object]]:
        return [_reader("miles"), _reader("rates")]
