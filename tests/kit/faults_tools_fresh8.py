"""Planted faults in tools."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from bases_c3_fresh8 import BicycleLock, HerbariumDrawer, call, drawer, seeds_on
from catalogue import fault

from grpo_core import Task, TaskKey


def shaken_drawer(task: Task[dict[str, int]]) -> list[int]:
    """List the numbers of the sheets in the drawer, as they come to hand."""
    numbers = [int(number) for number in task.data]
    random.shuffle(numbers)
    return numbers


@fault("a tool draws at random", "reply.repeat")
class HerbariumShaken(HerbariumDrawer):
    """Lists the sheets in an order that nobody can predict, which differs in every attempt."""

    def tools(self) -> Sequence[Callable[..., object]]:
        return (shaken_drawer, seeds_on)

    def reference(self, task: Task[dict[str, int]]) -> tuple[str, ...]:
        return call("shaken_drawer"), *super().reference(task)[1:]


@fault("a tool remembers earlier attempts", "reply.repeat")
class HerbariumHandledOnce(HerbariumDrawer):
    """Has each sheet handled once for a task, to spare it; only the first attempt counts seeds."""

    def __init__(self, config: Any = None, services: Any = None) -> None:
        super().__init__(config, services)
        self.handled: set[tuple[TaskKey, int]] = set()

    def tools(self) -> Sequence[Callable[..., object]]:
        def count_seeds(task: Task[dict[str, int]], number: int) -> str:
            """Count the seeds on one sheet, which is handled only once.

            Args:
                task: filled in.
                number: the number of the sheet.
            """
            if (task.key, number) in self.handled:
                return f"sheet {number} was handled before; see your notes"
            self.handled.add((task.key, number))
            return seeds_on(task, number)

        return (drawer, count_seeds)

    def reference(self, task: Task[dict[str, int]]) -> tuple[str, ...]:
        counts = "\n".join(call("count_seeds", number=int(number)) for number in task.data)
        return call("drawer"), counts, str(sum(task.data.values()))


def herbarium(task: Task[dict[str, int]], **request: Any) -> object:
    """Ask the herbarium: its drawers and its sheets."""
    if request.get("action") == "list":
        return drawer(task)
    if request.get("action") == "seeds" and str(request.get("sheet")) in task.data:
        return seeds_on(task, int(str(request["sheet"])))
    return {}


@fault("a tool takes anything", "tool.form")
class HerbariumByRequest(HerbariumDrawer):
    """Hands any request on to one function, so the policy is not told what a request holds."""

    def tools(self) -> Sequence[Callable[..., object]]:
        return (herbarium,)

    def reference(self, task: Task[dict[str, int]]) -> tuple[str, ...]:
        sheets = [call("herbarium", action="seeds", sheet=int(number)) for number in task.data]
        return call("herbarium", action="list"), "\n".join(sheets), str(sum(task.data.values()))


def matching_digits(first: str, second: str) -> int:
    """Count the places at which two codes have the same digit.

    Args:
        first: one code.
        second: the other code.
    """
    return sum(a == b for a, b in zip(first, second, strict=False))


@fault("tools are never asked", "tool.form", "declared.contract")
class LockWithACalculator(BicycleLock):
    """Offers a tool to compare codes, but the lock takes each call for a code and asks again."""

    def tools(self) -> Sequence[Callable[..., object]]:
        return (matching_digits,)
