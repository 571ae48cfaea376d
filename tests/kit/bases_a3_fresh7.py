"""Sound environments about a kitchen, and with tools, in which faults are planted elsewhere."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from bases_a_fresh7 import LONGEST, WHITE, clock, verdict, wanted
from pydantic import Field

from grpo_core import Environment, Message, Rollout, Task, TaskKey, Verdict
from grpo_core.extract import parse_integer


def call(name: str, **arguments: object) -> str:
    """Return a turn that calls a tool."""
    called = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>{called}</tool_call>"


# Amounts for more guests -------------------------------------------------------------------------

PER_HEAD: Mapping[str, int] = {
    "rice": 75,
    "pasta": 110,
    "flour": 60,
    "lentils": 80,
    "butter": 25,
    "sugar": 30,
    "spinach": 150,
    "cheese": 45,
}
WORDINGS = (
    "A recipe for {few} takes {grams} g of {food}. How many grams does it take for {many}?",
    "{grams} g of {food} feed {few} people. How many grams feed {many} people?",
    "You cook for {many} guests, and your book says {grams} g of {food} for {few}. How many grams?",
    "With {few} at the table we use {grams} g of {food}. Now {many} are coming. How many grams?",
)


class MoreGuests(Environment[int]):
    """Asks how many grams a recipe takes for more people; the reply is the number."""

    levels = False
    max_new_tokens = 16

    def task(self, key: TaskKey) -> Task[int]:
        rng = key.rng()
        while True:
            food, few, many = rng.choice(list(PER_HEAD)), rng.randint(2, 6), rng.randint(7, 18)
            wording = rng.choice(WORDINGS)
            question = wording.format(food=food, few=few, many=many, grams=few * PER_HEAD[food])
            if wanted(self.asked(f"{food} {few} to {many}", question), key):
                break
        text = f"{question} Reply with the number of grams in digits and nothing else."
        return Task(key, (Message("user", text),), many * PER_HEAD[food])

    def asked(self, content: str, question: str) -> str:
        """Return the text that decides whether a task is held out."""
        return content

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        answer = parse_integer(rollout.text, max_digits=6)
        return verdict(answer == task.data, rollout.text)

    def reference(self, task: Task[int]) -> str:
        return str(task.data)


# Two ways to pay a debt --------------------------------------------------------------------------

MOST_MONTHS = 600


def months_to_repay(
    cents: Annotated[int, Field(description="the debt in cents", ge=1, le=10**8)],
    per_mille: Annotated[int, Field(description="interest of a month in 1/1000", ge=0, le=100)],
    payment: Annotated[int, Field(description="cents paid at a month's end", ge=0, le=10**8)],
) -> str:
    """Return after how many months a debt is repaid, or "never" for more than 600 months."""
    for month in range(1, MOST_MONTHS + 1):
        cents += (cents * per_mille + 500) // 1000 - payment
        if cents <= 0:
            return str(month)
    return "never"


@dataclass(frozen=True, slots=True)
class Loan:
    """Holds a debt, its interest, two payments, and how many months sooner the larger one ends."""

    cents: int
    per_mille: int
    payments: tuple[int, int]
    sooner: int


class SoonerRepaid(Environment[Loan]):
    """Asks how many months sooner a debt is repaid by a larger payment; a tool counts months."""

    levels = False
    max_turns: ClassVar[int] = 4
    max_new_tokens = 128

    def task(self, key: TaskKey) -> Task[Loan]:
        rng = key.rng()
        while True:
            cents, per_mille = 100 * rng.randint(500, 9000), rng.randint(4, 25)
            low = cents * rng.randint(30, 60) // 1000
            high = low + cents * rng.randint(5, 60) // 1000
            months = [months_to_repay(cents, per_mille, payment) for payment in (low, high)]
            if "never" in months or not wanted(f"{cents} {per_mille} {low} {high}", key):
                continue
            if (sooner := int(months[0]) - int(months[1])) >= 2:
                break
        text = (
            f"A debt of {cents} cents grows by {per_mille}/1000 each month (rounded to whole "
            f"cents), and then a payment is taken off. How many months sooner is it repaid with "
            f"payments of {high} cents than of {low} cents? You may call the tool. At last reply "
            "with the number of months in digits and nothing else."
        )
        return Task(key, (Message("user", text),), Loan(cents, per_mille, (low, high), sooner))

    def tools(self) -> Sequence[Callable[..., object]]:
        return (months_to_repay,)

    def verify(self, task: Task[Loan], rollout: Rollout) -> Verdict:
        answer = parse_integer(rollout.text, max_digits=4)
        return verdict(answer == task.data.sooner, rollout.text)

    def reference(self, task: Task[Loan]) -> Sequence[str]:
        loan = task.data
        asked = [
            call("months_to_repay", cents=loan.cents, per_mille=loan.per_mille, payment=payment)
            for payment in loan.payments
        ]
        return (*asked, str(loan.sooner))


# Clocks of the world -----------------------------------------------------------------------------

OFFSETS: Mapping[str, int] = {
    "Lima": -300,
    "Denver": -420,
    "Halifax": -240,
    "Caracas": -240,
    "Recife": -180,
    "Dakar": 0,
    "Oslo": 60,
    "Cairo": 120,
    "Nairobi": 180,
    "Tehran": 210,
    "Dubai": 240,
    "Karachi": 300,
    "Mumbai": 330,
    "Kathmandu": 345,
    "Dhaka": 360,
    "Hanoi": 420,
    "Manila": 480,
    "Osaka": 540,
    "Darwin": 570,
    "Brisbane": 600,
}
"""Minutes that a city's standard time is ahead of Greenwich."""


def minutes_ahead(
    city: Annotated[str, Field(description="the name of a city, such as Oslo", max_length=40)],
) -> int:
    """Return by how many minutes the standard time of a city is ahead of Greenwich."""
    if city not in OFFSETS:
        raise LookupError(f"no city {city!r} is known")
    return OFFSETS[city]


class ClocksOfTheWorld(Environment[str]):
    """Asks for the time in another city; a tool knows the time zones."""

    levels = False
    max_turns: ClassVar[int] = 4
    max_new_tokens = 96

    def task(self, key: TaskKey) -> Task[str]:
        rng = key.rng()
        while True:
            here, there = rng.sample(list(OFFSETS), 2)
            now = rng.randrange(24 * 60)
            later = (now + OFFSETS[there] - OFFSETS[here]) % (24 * 60)
            if later != now and wanted(f"{here} to{there} {clock(now)}", key):
                break
        text = (
            f"It is {clock(now)} in {here}. What time is it in {there}, by the standard time of "
            "both? You may call the tool. At last reply with the time alone, as HH:MM in 24 hours."
        )
        return Task(key, (Message("user", text),), clock(later))

    def tools(self) -> Sequence[Callable[..., object]]:
        return (minutes_ahead,)

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        answer = rollout.text[:LONGEST].strip(WHITE)
        return verdict(answer == task.data, answer)

    def reference(self, task: Task[str]) -> Sequence[str]:
        return call("minutes_ahead", city="Oslo"), task.data


# The weight that freight is billed for -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shipment:
    """Holds the parcels (length, width, height in cm, and kg) and the weight that is billed."""

    numbers: tuple[int, ...]
    parcels: tuple[tuple[int, int, int, int], ...]
    billed: int


def volumetric(
    length: Annotated[int, Field(description="cm", ge=1, le=500)],
    width: Annotated[int, Field(description="cm", ge=1, le=500)],
    height: Annotated[int, Field(description="cm", ge=1, le=500)],
) -> int:
    """Return the volumetric weight of a parcel: cubic cm by 5000, rounded up to whole kg."""
    return -(-length * width * height // 5000)


def parcels(task: Task[Shipment]) -> list[dict[str, int]]:
    """Return number, length, width and height in cm, and weight in kg of each parcel."""
    names = ("length", "width", "height", "kg")
    pairs = zip(task.data.numbers, task.data.parcels, strict=True)
    return [{"number": n} | dict(zip(names, parcel, strict=True)) for n, parcel in pairs]


class BilledWeight(Environment[Shipment]):
    """Asks for the billed weight of a shipment, of which a tool tells the parcels."""

    max_turns: ClassVar[int] = 6
    max_new_tokens = 128

    def task(self, key: TaskKey) -> Task[Shipment]:
        rng, size = key.rng(), 2 + round(3 * key.level)
        while True:
            numbers = tuple(rng.sample(range(100_000, 1_000_000), size))
            sizes = tuple(
                (rng.randint(15, 90), rng.randint(15, 70), rng.randint(10, 60), rng.randint(1, 40))
                for _ in numbers
            )
            if wanted(str(sizes), key):
                break
        billed = sum(max(kg, volumetric(*sides)) for *sides, kg in sizes)
        text = (
            f"A shipment has the parcels {', '.join(map(str, numbers))}. Each is billed by its "
            "weight or by its volumetric weight, whichever is larger. Ask the tools for the "
            "parcels and what you need. How many kg are billed for the shipment? At last reply "
            "with the number in digits and nothing else."
        )
        return Task(key, (Message("user", text),), Shipment(numbers, sizes, billed))

    def tools(self) -> Sequence[Callable[..., object]]:
        return (parcels, volumetric)

    def verify(self, task: Task[Shipment], rollout: Rollout) -> Verdict:
        answer = parse_integer(rollout.text, max_digits=6)
        return verdict(answer == task.data.billed, rollout.text)

    def reference(self, task: Task[Shipment]) -> Sequence[str]:
        return call("parcels"), str(task.data.billed)


# The log of a server -----------------------------------------------------------------------------

PATHS = ("/cart", "/login", "/search", "/orders", "/export", "/profile")


@dataclass(frozen=True, slots=True)
class Log:
    """Holds the lines of a log, a request in it, and how many ms that took."""

    lines: tuple[str, ...]
    request: str
    took: int


def find_lines(
    word: Annotated[str, Field(description="what the lines contain", max_length=40)],
    task: Task[Log],
) -> list[str]:
    """Return the lines of the log that contain a word, in the order of time, ten at most."""
    return sorted(line for line in task.data.lines if word in line)[:10]


class RequestTime(Environment[Log]):
    """Asks how long a request took, by the log of a server that a tool searches."""

    levels = False
    max_turns: ClassVar[int] = 4
    max_new_tokens = 96

    def task(self, key: TaskKey) -> Task[Log]:
        rng = key.rng()
        while True:
            codes = [f"{code:05x}" for code in rng.sample(range(16**4, 16**5), 70)]
            request, spans = rng.choice(codes), {code: self.span(rng) for code in codes}
            if wanted(f"{request} {spans[request]}", key):
                break
        stamped = []
        for code, (start, took) in spans.items():
            path = rng.choice(PATHS)
            stamped.append(f"{self.stamp(start)} INFO  {code} begins GET {path}")
            stamped.append(f"{self.stamp(start + took)} INFO  {code} is done, status 200")
        text = (
            f"How many milliseconds did the request {request} take, by the log of the server? The "
            "tool reads the log. At last reply with the number in digits and nothing else."
        )
        log = Log(tuple(sorted(stamped)), request, spans[request][1])
        return Task(key, (Message("user", text),), log)

    def span(self, rng: random.Random) -> tuple[int, int]:
        """Return when a request begins, and how long it takes, in ms."""
        return rng.randrange(10 * 3_600_000, 18 * 3_600_000), rng.randint(20, 9000)

    def stamp(self, ms: int) -> str:
        """Return milliseconds after midnight as the log writes them."""
        return f"{clock(ms // 60_000)}:{ms // 1000 % 60:02}.{ms % 1000:03}"

    def tools(self) -> Sequence[Callable[..., object]]:
        return (find_lines,)

    def verify(self, task: Task[Log], rollout: Rollout) -> Verdict:
        answer = parse_integer(rollout.text, max_digits=6)
        return verdict(answer == task.data.took, rollout.text)

    def reference(self, task: Task[Log]) -> Sequence[str]:
        return call(self.tools()[0].__name__, word=task.data.request), str(task.data.took)
