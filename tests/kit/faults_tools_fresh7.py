"""Tools that hang, tell too much or nothing, or are described badly."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Annotated, Any, TypeVar

from bases_a3_fresh7 import (
    OFFSETS,
    BilledWeight,
    ClocksOfTheWorld,
    Log,
    RequestTime,
    Shipment,
    SoonerRepaid,
    call,
    minutes_ahead,
    parcels,
    volumetric,
)
from catalogue import fault
from pydantic import Field

from grpo_core import Task

Function = TypeVar("Function", bound=Callable[..., object])


def pay_off(
    cents: Annotated[int, Field(description="the debt in cents", ge=1, le=10**8)],
    per_mille: Annotated[int, Field(description="interest of a month in 1/1000", ge=0, le=100)],
    payment: Annotated[int, Field(description="cents paid at a month's end", ge=0, le=10**8)],
) -> int:
    """Return after how many months a debt is repaid."""
    month = 0
    while cents > 0:
        month += 1
        cents += (cents * per_mille + 500) // 1000 - payment
    return month


@fault("a tool can hang", "tool.execute", "reply.hostile", "reply.form")
class PaysOffInTheEnd(SoonerRepaid):
    """The tool goes on month by month until the debt is repaid.

    A payment that is no more than the interest never repays it, and the tool never returns.
    """

    def tools(self) -> Sequence[Callable[..., object]]:
        return (pay_off,)

    def reference(self, task: Task[Any]) -> Sequence[str]:
        loan = task.data
        asked = [
            call("pay_off", cents=loan.cents, per_mille=loan.per_mille, payment=payment)
            for payment in loan.payments
        ]
        return (*asked, str(loan.sooner))


def clock_in(
    city: Annotated[str, Field(description="the name of a city, such as Oslo", max_length=40)],
    hour: Annotated[int, Field(description="the hour in Greenwich", ge=0, le=23)],
    minute: Annotated[int, Field(description="the minute in Greenwich", ge=0, le=59)],
) -> str:
    """Return what the clocks of a city show at a time of Greenwich."""
    if city not in OFFSETS:
        raise LookupError(f"no city {city!r} is known")
    sign, ahead = "-" if OFFSETS[city] >= 0 else "+", abs(OFFSETS[city])
    os.environ["TZ"] = f"LOC{sign}{ahead // 60}:{ahead % 60:02}"
    time.tzset()
    return time.strftime("%H:%M", time.localtime(864_000_000 + 3600 * hour + 60 * minute))


@fault("a tool changes the state of the process", "safety.state")
class TravelsToTheCity(ClocksOfTheWorld):
    """The tool sets the time zone to that of the city, and asks for the local time.

    The zone is that of the process, which stays there.
    """

    def tools(self) -> Sequence[Callable[..., object]]:
        return (clock_in,)

    def reference(self, task: Task[str]) -> Sequence[str]:
        return call("clock_in", city="Oslo", hour=12, minute=0), task.data


def in_whole_numbers(function: Function) -> Function:
    """Return a function that rounds its arguments before it is called."""

    def rounded(*arguments: Any, **named: Any) -> object:
        return function(*map(round, arguments), **{key: round(x) for key, x in named.items()})

    described: Any = rounded
    described.__name__, described.__annotations__ = function.__name__, function.__annotations__
    described.__signature__ = inspect.signature(function)
    return described  # type: ignore[no-any-return]


@fault("a tool has no description", "tool.form")
class RoundedOnTheWay(BilledWeight):
    """A decorator rounds what a tool gets, and takes over its name and its parameters.

    It forgets the docstring, so the policy is not told what `volumetric` is.
    """

    def tools(self) -> Sequence[Callable[..., object]]:
        return (parcels, in_whole_numbers(volumetric))


class Almanac:
    """Is a client of time zones, whose methods were written for a server."""

    async def minutes_ahead(
        self,
        city: Annotated[str, Field(description="the name of a city", max_length=40)],
    ) -> int:
        """Return by how many minutes the standard time of a city is ahead of Greenwich."""
        return minutes_ahead(city)


@fault("a tool is async", "tool.form")
class AlmanacOfAServer(ClocksOfTheWorld):
    """The tool is a method of a client that an asynchronous server uses as well.

    Nobody awaits it here.
    """

    def tools(self) -> Sequence[Callable[..., object]]:
        return (Almanac().minutes_ahead,)


def read_log(task: Task[Log]) -> str:
    """Return the log of the server, one line for each event, in the order of time."""
    return "\n".join(task.data.lines)


@fault("a tool returns more than a policy can read", "tool.form")
class LogInOnePiece(RequestTime):
    """The tool returns the whole log, as one would open it in an editor.

    Only its beginning reaches the policy, and most requests stand behind that.
    """

    def tools(self) -> Sequence[Callable[..., object]]:
        return (read_log,)

    def reference(self, task: Task[Log]) -> Sequence[str]:
        return call("read_log"), str(task.data.took)


def lines_of(
    word: Annotated[str, Field(description="what the lines contain", max_length=40)],
    task: Task[Log],
) -> object:
    """Return the lines of the log that contain a word, in the order of time, ten at most."""
    found = [line for line in task.data.lines if word in line][:10]
    return found.sort()


@fault("a tool returns nothing", "tool.form")
class SortsInPlace(RequestTime):
    """The lines that were found are sorted, and what `sort` returns is returned.

    That is None, whatever was found.
    """

    def tools(self) -> Sequence[Callable[..., object]]:
        return (lines_of,)


def shipment(task: Task[Shipment]) -> dict[str, Any]:
    """Return the shipment: the numbers of its parcels, their length, width, height and kg."""
    return asdict(task.data)


@fault("a tool sees the answer", "tool.secret", "reply.secret")
class WholeShipment(BilledWeight):
    """The tool returns the shipment as the environment keeps it.

    That includes the billed weight, which is asked for.
    """

    def tools(self) -> Sequence[Callable[..., object]]:
        return (shipment, volumetric)

    def reference(self, task: Task[Shipment]) -> Sequence[str]:
        return call("shipment"), str(task.data.billed)
