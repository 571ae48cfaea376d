"""Planted faults of the sixth fresh part: tools."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bases_state_fresh5 import COUNTRIES, Baking, Parcels, called, tariffs
from bases_state_fresh6 import STOPS, Bench, Bills, Riders, call, minutes_of
from catalogue import fault

from grpo_core import Message, Task, TaskKey

ZONES = dict(zip(STOPS, ("UTC", "UTC-1", "UTC-2", "UTC-3", "UTC+1") * 2, strict=True))


@fault("a tool changes the state of the process", "safety.state")
class RidersInZones(Riders):
    """The C library knows one time zone only, that of the process."""

    def tools(self) -> Sequence[Callable[..., object]]:
        return (self.ride, self.clock)

    def clock(self, stop: str, seconds: int) -> str:
        """Return the time at a stop, by the seconds since the start of 2026 in UTC."""
        if stop not in ZONES or not 0 <= seconds < 10**7:
            raise ValueError(f"there are {', '.join(STOPS)}, and less than 10000000 seconds")
        os.environ["TZ"] = ZONES[stop]
        time.tzset()
        return time.strftime("%d %H:%M:%S", time.localtime(1_767_225_600 + seconds))

    def reference(self, task: Task[Any]) -> Any:
        return call("clock", stop=task.data["stops"][0], seconds=3600), *super().reference(task)


@fault("a tool has no description", "tool.form")
class RidersByAFormat(Riders):
    """A text with values in it is not the description of a function."""

    def ride(self, start: str, end: str) -> object:
        f"""Return how many minutes a ride takes between two of {", ".join(STOPS)}."""  # noqa: B021
        return {"minutes": minutes_of(start, end)}


def finder(table: Mapping[str, Any], named: str, about: str) -> Callable[..., object]:
    """Return a tool that finds something in a table."""

    def find(country):  # type: ignore[no-untyped-def]
        if country not in table:
            raise ValueError(f"there are {', '.join(table)}")
        return table[country]

    find.__name__, find.__doc__ = named, about
    return find


@fault("a tool has no types", "tool.form")
class FindersOfParcels(Parcels):
    """Tools are made from tables, and what they take is left open."""

    def tools(self) -> Sequence[Callable[..., object]]:
        bases = {country: f"{tariffs()[country][0]} ct" for country in COUNTRIES}
        each = {country: f"{tariffs()[country][1]} ct for each 100 g" for country in COUNTRIES}
        return (
            finder(bases, "base", "Return the least that a parcel to a country costs."),
            finder(each, "weight", "Return what the weight of a parcel to a country costs."),
        )

    def reference(self, task: Task[Any]) -> Any:
        turns = (
            called("base", country=country) + called("weight", country=country)
            for country, _ in task.data["parcels"]
        )
        return *turns, self.solution(task.data)


class OpenBench(Bench):
    """A folder with subfolders, of which names may have slashes."""

    def place(self, name: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        return path


@fault("a tool reads or writes any file", "tool.execute", "safety.files")
class BillsInFolders(Bills):
    """Nothing holds a name within the folder: not `..`, and not a path from the root."""

    attempt = OpenBench


@fault("a tool remembers earlier attempts", "reply.repeat")
class RidersOnABudget(Riders):
    """Ten rides may be looked up for a task, whoever does it."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.asked: Counter[TaskKey] = Counter()

    def tools(self) -> Sequence[Callable[..., object]]:
        return (self.lookup,)

    def lookup(self, start: str, end: str, task: Task[Any]) -> object:
        """Return how many minutes a ride takes from one stop to another."""
        self.asked[task.key] += 1
        if self.asked[task.key] > 10:
            raise ValueError("ten rides were looked up already")
        return {"minutes": minutes_of(start, end)}

    def calls(self, data: Any) -> Sequence[str]:
        return [turn.replace('"ride"', '"lookup"') for turn in super().calls(data)]


@fault("a tool returns nothing", "tool.form")
class RidersThereAndBack(Riders):
    """A ride against the alphabet is asked for again the other way round, and not returned."""

    def ride(self, start: str, end: str) -> object:  # type: ignore[return]  # noqa: RET503
        """Return how many minutes a ride takes from one stop to another."""
        if start > end:
            self.ride(end, start)
        else:
            return {"minutes": minutes_of(start, end)}


@fault("tools are never asked", "tool.form", "declared.contract")
class RidersReminded(Riders):
    """Whoever forgets the block is reminded, and that takes the place of what answers calls."""

    async def reply(self, task: Task[Any], messages: Sequence[Message]) -> Sequence[Message] | None:
        if "<minutes>" in messages[-1].content:
            return None
        return (Message("user", "End with the number, as in <minutes>310</minutes>."),)


@fault("tools are not functions", "tool.form", "declared.contract")
class BakingByName(Baking):
    """The tools are handed out by their names, as a dictionary."""

    def tools(self) -> Sequence[Callable[..., object]]:
        return {each.__name__: each for each in super().tools()}  # type: ignore[return-value]
