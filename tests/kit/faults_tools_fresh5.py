"""Planted faults of the fifth fresh part: tools."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bases_state_fresh5 import COUNTRIES, Parcels, called, postage_of
from catalogue import fault

from grpo_core import DescribedTool, Task


@fault("a tool hands its argument to a shell", "tool.execute")
class ArrivesOn(Parcels):
    """The command `date` knows months and leap years, and gets the day as it was written."""

    def tools(self) -> Sequence[Callable[..., object]]:
        return (self.postage, self.arrival)

    def arrival(self, posted: str, days: int) -> str:
        """Return the date on which a parcel arrives, by the day on which it is posted."""
        command = f'date -u -d "{posted} + {days} days" +%F'
        done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=1)
        if done.returncode:
            raise ValueError("write the day as in 2026-11-26")
        return done.stdout.strip()


@fault("a tool has no description", "tool.form")
class InsuredParcels(Parcels):
    """The method is overridden, and a docstring is not inherited."""

    def postage(self, country: str, grams: int, insured: bool = False) -> object:
        cents = postage_of(country, grams)
        return {"cents": cents, "insurance": 250 if insured else 0}


OPERATIONS: Sequence[Mapping[str, Any]] = (
    {
        "operation": "postage",
        "summary": "Return the postage of a parcel in cents, by its country and its weight in g.",
        "schema": {
            "type": "object",
            "properties": {"country": {"type": "string"}, "grams": {"type": "integer"}},
            "required": ["country", "grams"],
        },
    },
)


@fault("a tool has no name", "tool.form")
class ToolsOfAnInterface(Parcels):
    """The names are under another key of the description than the one that is read."""

    def tools(self) -> Sequence[Callable[..., object]]:
        return [
            DescribedTool(
                operation.get("operationId", ""),
                operation["summary"],
                operation["schema"],
                lambda given: {"cents": postage_of(given["country"], given["grams"])},
            )
            for operation in OPERATIONS
        ]

    def reference(self, task: Task[Any]) -> Any:
        return self.solution(task.data)


@fault("a tool returns more than a policy can read", "tool.form")
class WholeTariff(Parcels):
    """The tool returns the tariff of a country, of which heavy parcels are at the end."""

    def tools(self) -> Sequence[Callable[..., object]]:
        return (self.tariff,)

    def tariff(self, country: str) -> str:
        """Return the tariff of a country: for each weight in g the postage in cents."""
        if country not in COUNTRIES:
            raise ValueError(f"parcels go to {', '.join(COUNTRIES)}")
        rows = (f"up to {grams:>5} g: {postage_of(country, grams):>6} ct" for grams in WEIGHTS)
        return "\n".join((f"Postage to {country}", *rows))

    def reference(self, task: Task[Any]) -> Any:
        turns = (called("tariff", country=country) for country, _ in task.data["parcels"])
        return *turns, self.solution(task.data)


WEIGHTS = range(100, 10_001, 25)


@fault("a tool takes anything", "tool.form")
class AnyFieldOfAParcel(Parcels):
    """Whatever fields a parcel has are taken, and those that are missing have defaults."""

    def postage(self, **parcel: Any) -> object:  # type: ignore[override]
        """Return the postage of a parcel in cents, by its country and its weight in g."""
        country, grams = parcel.get("country", "Spain"), parcel.get("grams", 1000)
        return {"cents": postage_of(str(country), int(grams))}
