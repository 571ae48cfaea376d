"""Sound environments of the kinds E, third part: those with tools."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from itertools import product
from typing import ClassVar

from bases_e_fresh9 import drawn, judged, last_line

from grpo_core import Environment, Message, Rollout, Task, TaskKey, Verdict
from grpo_core.extract import parse_integer, xml_tag

_DICE = random.Random("freight")
ZONES = {
    f"{letters}{digit}": (_DICE.randint(11, 97), _DICE.randint(120, 990))
    for letters, digit in product(("QA", "QD", "KE", "KO", "ZU", "ZY", "VI", "VA"), range(2, 10))
}
"""The rate for each kilogram and the fee for each consignment, in cents, by zone."""


def call(name: str, /, **arguments: object) -> str:
    """Return a turn that calls a tool."""
    text = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>{text}</tool_call>"


def tariff(zone: str) -> str:
    """Look up the rate for each kilogram and the fee for each consignment, in cents."""
    if zone not in ZONES:
        return "no such zone"
    rate, fee = ZONES[zone]
    return f"rate {rate}, fee {fee}"


class FreightDesk(Environment[tuple[str, int]]):
    """Asks for the price of a consignment, whose tariff a tool tells; data is zone and price."""

    levels: ClassVar[bool] = False
    max_turns: ClassVar[int] = 4

    def tools(self) -> Sequence[Callable[..., object]]:
        return (tariff,)

    def task(self, key: TaskKey) -> Task[tuple[str, int]]:
        def draw(rng: random.Random) -> tuple[str, tuple[str, int]]:
            zone, kilograms = rng.choice(list(ZONES)), rng.randint(3, 79)
            return f"{zone} {kilograms}", (zone, kilograms)

        zone, kilograms = drawn(key, draw)
        question = (
            f"What is the price of a consignment of {kilograms} kg to zone {zone}? It is the fee "
            "and the rate for each kilogram. Give it in cents, in <cents>...</cents>."
        )
        rate, fee = ZONES[zone]
        return Task(key, (Message("user", question),), (zone, fee + rate * kilograms))

    def verify(self, task: Task[tuple[str, int]], rollout: Rollout) -> Verdict:
        block = xml_tag(rollout.text, tag="cents")
        content = "" if block is None else block.content
        return judged(parse_integer(content, max_digits=7) == task.data[1], content)

    def reference(self, task: Task[tuple[str, int]]) -> Sequence[str]:
        return (call("tariff", zone=task.data[0]), f"<cents>{task.data[1]}</cents>")


def multiply(first: int, second: int) -> int:
    """Multiply two whole numbers below a million."""
    if max(abs(first), abs(second)) >= 10**6:
        raise ValueError("the numbers are too large")
    return first * second


class DarkroomSeconds(Environment[tuple[int, int, int, int]]):
    """Asks how long a series of prints takes; data is prints, tenths, factor and rinse."""

    levels: ClassVar[bool] = False
    max_turns: ClassVar[int] = 4

    def tools(self) -> Sequence[Callable[..., object]]:
        return (multiply,)

    def task(self, key: TaskKey) -> Task[tuple[int, int, int, int]]:
        def draw(rng: random.Random) -> tuple[str, tuple[int, int, int, int]]:
            prints, tenths = rng.randint(7, 48), rng.randint(31, 190)
            series = (prints, tenths, rng.randint(2, 9), rng.randint(200, 960))
            return " ".join(map(str, series)), series

        series = drawn(key, draw)
        prints, tenths, factor, rinse = series
        question = (
            f"A darkroom makes {prints} prints. Each is exposed for {tenths} tenths of a second "
            f"times a filter factor of {factor}, then rinsed for {rinse} tenths. How many tenths "
            "of a second do all of them take? Answer in <tenths>...</tenths>."
        )
        return Task(key, (Message("user", question),), series)

    def verify(self, task: Task[tuple[int, int, int, int]], rollout: Rollout) -> Verdict:
        prints, tenths, factor, rinse = task.data
        block = xml_tag(rollout.text, tag="tenths")
        content = "" if block is None else block.content
        right = parse_integer(content, max_digits=8) == prints * (tenths * factor + rinse)
        return judged(right, content)

    def asked(self, task: Task[tuple[int, int, int, int]]) -> str:
        """Return the call of the tool in the reference."""
        return call("multiply", first=task.data[1], second=task.data[2])

    def reference(self, task: Task[tuple[int, int, int, int]]) -> Sequence[str]:
        prints, tenths, factor, rinse = task.data
        return (self.asked(task), f"<tenths>{prints * (tenths * factor + rinse)}</tenths>")


BIRDS = ("herons", "coots", "teals", "grebes", "swans", "terns", "rails", "snipes", "pochards")
_WATCH = random.Random("field book")
BOOK = {
    f"pond-{number:02d}": dict(zip(BIRDS, counts, strict=True))
    for number in range(1, 41)
    if (counts := _WATCH.sample(range(3, 250), len(BIRDS)))
}
"""How many birds of a kind were seen, by pond."""


def page_of(pond: str) -> str:
    """Return the page of a pond, one kind of bird on each line."""
    return "\n".join(f"{pond} {bird} {count}" for bird, count in BOOK[pond].items())


def read_page(pond: str) -> str:
    """Read the page of a pond, such as pond-07, in the field book."""
    return page_of(pond) if pond in BOOK else "no such pond"


class FieldBook(Environment[tuple[str, int]]):
    """Asks for a difference of two counts in a field book; data is the pond and the answer."""

    levels: ClassVar[bool] = False
    max_turns: ClassVar[int] = 4

    def tools(self) -> Sequence[Callable[..., object]]:
        return (read_page,)

    def task(self, key: TaskKey) -> Task[tuple[str, int]]:
        def draw(rng: random.Random) -> tuple[str, tuple[str, str, str]]:
            pond, pair = rng.choice(list(BOOK)), rng.sample(BIRDS, 2)
            more, fewer = sorted(pair, key=BOOK[pond].__getitem__, reverse=True)
            return f"{pond} {more} {fewer}", (pond, more, fewer)

        pond, more, fewer = drawn(key, draw)
        question = (
            f"How many more {more} than {fewer} were seen at {pond}? The field book tells. "
            'End with a line such as "Count: 250".'
        )
        return Task(key, (Message("user", question),), (pond, BOOK[pond][more] - BOOK[pond][fewer]))

    def verify(self, task: Task[tuple[str, int]], rollout: Rollout) -> Verdict:
        line = last_line(rollout.text)
        return judged(line == f"Count: {task.data[1]}", line)

    def asked(self, task: Task[tuple[str, int]]) -> str:
        """Return the call of the tool in the reference."""
        return call("read_page", pond=task.data[0])

    def reference(self, task: Task[tuple[str, int]]) -> Sequence[str]:
        return (self.asked(task), f"Count: {task.data[1]}")
