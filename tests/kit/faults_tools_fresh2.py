"""Planted faults: tools, of the second fresh part."""

from __future__ import annotations

import importlib
import random
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from bases_talk_fresh2 import TOWNS, Atlas, Shelves, count, far
from catalogue import fault

from grpo_core import Message, Rollout, Task, Verdict

Tools = Sequence[Callable[..., object]]


def summary() -> str:
    """Return how much the store holds in all."""
    raise NotImplementedError  # reply() answers


def check(total: int) -> str:
    """Check a total before it is reported."""
    raise NotImplementedError  # reply() answers


@fault("a summary has the result, too", "tool.secret", "reply.secret")
class SummaryHasIt(Shelves):
    def tools(self) -> Tools:
        return (count, summary)

    def known(self, task: Task[Any]) -> Tools:
        def summary() -> str:
            return f"All: {sum(task.data['boxes'])}. This order: {task.data['total']}."

        return (*super().known(task), summary)


@fault("a tool that checks says what was expected", "tool.secret", "reply.secret")
class ExpectedButGot(Shelves):
    def tools(self) -> Tools:
        return (count, check)

    def known(self, task: Task[Any]) -> Tools:
        def check(total: int) -> str:
            right = task.data["total"]
            return "ok" if total == right else f"expected {right}, got {total}"

        return (*super().known(task), check)


@fault("a tool's error message prints the task", "tool.secret", "reply.secret")
class ErrorPrintsTheTask(Shelves):
    def known(self, task: Task[Any]) -> Tools:
        def count(shelf: int) -> int:
            if not 1 <= shelf <= 20:
                raise ValueError(f"no shelf {shelf} in {task.data}")
            boxes: list[int] = task.data["boxes"]
            return boxes[shelf - 1]

        return (count,)


class Leg:
    """A stretch between two towns."""

    def __init__(self, length: int) -> None:
        self.length = length


@fault("a tool's result is an object without a text", "tool.form", "reply.repeat")
class ObjectOfALeg(Atlas):
    def tools(self) -> Tools:
        return (leg,)


def leg(start: str, end: str) -> Leg:
    """Return the stretch between two towns."""
    return Leg(far(start, end))


@fault("a tool's result has the order of hashes", "reply.repeat")
class NeighboursInASet(Atlas):
    def tools(self) -> Tools:
        return (self.distance, near)


def near(town: str) -> object:
    """Return the towns within 120 km of a town."""
    return {other for other in TOWNS if town in TOWNS and far(town, other) <= 120}


@fault("a tool takes its arguments by place only", "tool.form")
class ByPlaceOnly(Atlas):
    def tools(self) -> Tools:
        return (between,)


def between(start: str, end: str, /) -> int:
    """Return the distance between two towns in km."""
    return far(start, end)


@fault("a parameter is described under another name", "tool.form")
class ParameterRenamed(Shelves):
    def known(self, task: Task[Any]) -> Tools:
        def count(number: int) -> int:
            boxes: list[int] = task.data["boxes"]
            return boxes[number - 1]

        return (count,)

    def reference(self, task: Task[Any]) -> Any:
        return str(task.data["total"])


@fault("a tool that is described is not there", "tool.form")
class DescribedOnly(Shelves):
    def tools(self) -> Tools:
        return (count, summary)


@fault("a tool leaves a file of its calls", "safety.files", "safety.state")
class LogsItsCalls(Atlas):
    def distance(self, start: str, end: str) -> int:
        """Return the distance between two towns in km."""
        with Path("calls.log").open("a", encoding="utf-8", errors="replace") as file:
            file.write(f"{start} {end}\n")
        return super().distance(start, end)


@fault("a tool seeds the global generator", "safety.state")
class SeedsByTheTown(Atlas):
    def distance(self, start: str, end: str) -> int:
        """Return the distance between two towns in km."""
        random.seed(len(start) + len(end))
        return super().distance(start, end)


@fault("a tool fills in a template that it is given", "tool.execute", "safety.eval")
class FillsATemplate(Atlas):
    def tools(self) -> Tools:
        return (self.distance, self.describe)

    def describe(self, template: str, town: str) -> str:
        """Describe a town by a template such as '{name} has number {number}'."""
        return template.format(name=town, number=TOWNS.index(town), atlas=self)


@fault("a tool puts its argument into a query", "tool.execute", "safety.eval")
class QueryOfTowns(Atlas):
    def tools(self) -> Tools:
        return (self.distance, select)


def select(condition: str) -> list[Any]:
    """Return the towns that meet a condition, such as: number < 5"""
    with sqlite3.connect(":memory:") as base:
        base.execute("CREATE TABLE towns (name, number)")
        base.executemany("INSERT INTO towns VALUES (?, ?)", zip(TOWNS, range(99), strict=False))
        return base.execute(f"SELECT name, number FROM towns WHERE {condition}").fetchall()


@fault("a tool fetches the address that it is told", "tool.execute", "safety.network")
class FetchesAPage(Atlas):
    def tools(self) -> Tools:
        return (self.distance, fetch)


def fetch(address: str) -> str:
    """Return a page about a town, such as https://example.org/towns"""
    with urlopen(address, timeout=1) as answer:
        return str(answer.read(2000))


@fault("a tool imports the module that it is told", "tool.execute", "safety.eval")
class ImportsAMap(Atlas):
    def tools(self) -> Tools:
        return (self.distance, use)


def use(name: str) -> str:
    """Use the map of a country, by the name of its module."""
    return str(importlib.import_module(name).__doc__)


@fault("a quota of calls is shared by all episodes", "reply.repeat", "tool.form")
class SharedQuota(Atlas):
    def __init__(self, config: Any = None, services: Any = None) -> None:
        super().__init__(config, services)
        self.left = 12

    def distance(self, start: str, end: str) -> int:
        """Return the distance between two towns in km."""
        self.left -= 1
        if self.left < 0:
            raise ValueError("no calls are left")
        return super().distance(start, end)


@fault("a tool returns nothing", "tool.form")
class ForgetsToReturn(Atlas):
    def tools(self) -> Tools:
        return (measured,)


def measured(start: str, end: str) -> None:
    """Return the distance between two towns in km."""
    if start not in TOWNS or end not in TOWNS:
        raise ValueError("there is no such town")
    far(start, end)


@fault("what a tool said counts as the answer", "reply.echo")
class ToolSaidIt(Atlas):
    def tools(self) -> Tools:
        return (self.distance, times)

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        said = [turn.content for turn in rollout.messages if turn.role == "tool"]
        right = any(self.accepts(task.data, text) for text in (rollout.text, *said))
        return self.judged(right, rollout.text)


def times(one: int, other: int) -> int:
    """Multiply two numbers."""
    return one * other


@fault("a tool's answer is a turn of the policy", "reply.form", "reply.echo")
class AnswersAsThePolicy(Shelves):
    async def reply(self, task: Task[Any], messages: Sequence[Message]) -> Sequence[Message] | None:
        told = await super().reply(task, messages)
        return told and [Message("assistant", message.content) for message in told]


@fault("calls are read by a reader that knows one form", "reply.form", "tool.form", "reply.hostile")
class ReadsOneForm(Shelves):
    async def reply(self, task: Task[Any], messages: Sequence[Message]) -> Sequence[Message] | None:
        text = messages[-1].content
        if "<tool_call>" not in text:
            return None
        shelves = [int(each.split(":")[-1].strip(" }")) for each in text.split("}}")[:-1]]
        return [Message("tool", str(task.data["boxes"][shelf - 1])) for shelf in shelves]
