"""Sound environments: functions of Python, flights, and two with tools: hives and freight."""

import json
import pkgutil
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bases_g_fresh10 import Asked, Draft, Tagged

from grpo_core import Task


def _two(rng: random.Random) -> tuple[Any, ...]:
    return rng.randint(3, 40), rng.randint(2, 9)


def _list(rng: random.Random) -> tuple[Any, ...]:
    return ([rng.randint(1, 9) for _ in range(5)],)


def _place(rng: random.Random) -> tuple[Any, ...]:
    numbers = sorted(rng.sample(range(1, 30), 5))
    return numbers, rng.choice(numbers)


def _some(rng: random.Random) -> tuple[Any, ...]:
    return rng.randint(2, 3), [rng.randint(10, 99) for _ in range(5)]


def _path(rng: random.Random) -> tuple[Any, ...]:
    words = rng.sample(("srv", "data", "logs", "jobs", "web", "mail", "cron"), 3)
    return (f"/{'/'.join(words)}{rng.randint(1, 99)}.txt",)


def _text(rng: random.Random) -> tuple[Any, ...]:
    words = rng.sample(("salt", "ROPE", "mild <b>", "tea & rum", "old", "Fir", "ink"), 3)
    return (f"{' '.join(words)} {rng.randint(1, 99)}",)


Arguments = Callable[[random.Random], tuple[Any, ...]]
_DRAWN: dict[str, Arguments] = {
    "math.gcd math.lcm math.comb math.perm operator.xor operator.mod operator.floordiv": _two,
    "calendar.leapdays": lambda rng: (rng.randint(1900, 1950), 2000),
    "math.prod statistics.median statistics.multimode": _list,
    "bisect.bisect_left bisect.bisect_right": _place,
    "heapq.nlargest heapq.nsmallest": _some,
    "os.path.basename os.path.dirname os.path.splitext": _path,
    "html.escape string.capwords": _text,
}
FUNCTIONS: dict[str, tuple[Callable[..., Any], Arguments]] = {
    name: (pkgutil.resolve_name(name), arguments)
    for names, arguments in _DRAWN.items()
    for name in names.split()
}


def result_of(name: str, arguments: tuple[Any, ...]) -> str:
    """Return what a function of the table gives, as Python writes it; "" if it refuses."""
    try:
        return repr(FUNCTIONS[name][0](*arguments))
    except (TypeError, ValueError, AttributeError):
        return ""


class FunctionOfPython(Asked):
    """Shows calls of a function of the standard library, and asks for its dotted name."""

    max_new_tokens = 24
    rules = (
        f"The function is one of these: {', '.join(FUNCTIONS)}. "
        "Reply with its full dotted name alone."
    )
    shown = 60

    def draw(self, rng: random.Random, level: float) -> Draft | None:
        name = rng.choice(list(FUNCTIONS))
        calls = [FUNCTIONS[name][1](rng) for _ in range(2 if level >= 0.5 else 3)]
        fits = [
            other
            for other in FUNCTIONS
            if all(result_of(other, call) == result_of(name, call) for call in calls)
        ]
        question = "\n".join(
            f"f({', '.join(map(repr, call))}) == {result_of(name, call)}" for call in calls
        )
        return Draft(question, name) if fits == [name] else None


@dataclass(frozen=True)
class Flight:
    """Holds the take-off in minutes of UTC, the time in the air, and the zone of the landing."""

    start: int
    minutes: int
    zone: int

    @property
    def local(self) -> str:
        """Return the time of the landing there."""
        total = (self.start + self.minutes + 60 * self.zone) % 1440
        return f"{total // 60:02d}:{total % 60:02d}"


class LandingTimes(Tagged):
    """Asks for the local time of a landing; the answer stands in <local>."""

    max_new_tokens = 96
    rules = "Reply with <local>HH:MM</local>, the local time of the landing."
    tag = "local"
    shown = 20

    def draw(self, rng: random.Random, level: float) -> Draft | None:
        origin, zone = rng.sample(range(-9, 12), 2)
        minutes = rng.randint(50, 300) if level < 0.5 else rng.randint(300, 900)
        flight = Flight(rng.randrange(1440), minutes, zone)
        clock = (flight.start + 60 * origin) % 1440
        question = (
            f"Take-off at {clock // 60:02d}:{clock % 60:02d}, where it is UTC{origin:+d}. "
            f"The flight lasts {minutes // 60} h {minutes % 60} min. It lands where it is "
            f"UTC{zone:+d}."
        )
        return None if flight.local in question else Draft(question, flight)

    def right(self, data: Flight) -> str:
        return data.local


def call_text(name: str, **arguments: object) -> str:
    """Return a call of a tool as the policy writes it."""
    body = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>{body}</tool_call>"


HIVES = ("Acacia", "Borage", "Clover", "Dill", "Erica", "Fern", "Gorse", "Heath", "Iris", "Lime")


@dataclass(frozen=True)
class Apiary:
    """Holds the weights of all hives, and the two or three that are asked about."""

    weights: tuple[tuple[str, int], ...]
    asked: tuple[str, ...]

    @property
    def total(self) -> int:
        """Return the weight of the hives that are asked about."""
        return sum(dict(self.weights)[name] for name in self.asked)


def hive_weight(hive: str, task: Task[Apiary]) -> str:
    """Weigh a hive and return its weight in kilograms."""
    weights = dict(task.data.weights)
    return f"{weights[hive]} kg" if hive in weights else "there is no such hive"


class ApiaryScale(Tagged):
    """Asks what some hives weigh together; a tool weighs one hive at a time."""

    max_turns = 3
    max_new_tokens = 160
    rules = "Weigh the hives with the tool. End with <kg>N</kg>, their weights added up."
    tag = "kg"
    shown = 20

    def draw(self, rng: random.Random, level: float) -> Draft:
        weights = tuple((name, rng.randint(21, 78)) for name in HIVES)
        asked = tuple(rng.sample(HIVES, 3 if level < 0.5 else 5))
        words = f"{rng.choice(('May', 'June', 'July', 'August'))} {rng.randint(1, 30)}"
        question = f"On {words}, what do these hives weigh together: {', '.join(asked)}?"
        return Draft(question, Apiary(weights, asked), f"{words} {asked}")

    def tools(self) -> Sequence[Callable[..., object]]:
        return [hive_weight]

    def right(self, data: Apiary) -> str:
        return str(data.total)

    def reference(self, task: Task[Apiary]) -> str | Sequence[str]:
        calls = "".join(call_text("hive_weight", hive=name) for name in task.data.asked)
        return (calls, super().reference(task))


TOWNS = ("Aldmere", "Brackley", "Corvin", "Dunmoor", "Eastry", "Farholt", "Garrow", "Hexley")
GOODS = ("timber", "gravel", "barley", "cement", "scrap", "salt", "coal", "wool")


@dataclass(frozen=True)
class Freight:
    """Holds the books of a haulier and one order; the cost is not in the books."""

    miles: tuple[tuple[str, int], ...]
    rates: tuple[tuple[str, int], ...]
    town: str
    goods: str
    tons: int

    @property
    def cost(self) -> int:
        """Return the cost of the order in crowns."""
        return dict(self.miles)[self.town] * dict(self.rates)[self.goods] * self.tons


def miles_to(town: str, task: Task[Freight]) -> str:
    """Look up how many miles it is to a town."""
    return str(dict(task.data.miles).get(town, "unknown town"))


def rate_of(goods: str, task: Task[Freight]) -> str:
    """Look up the rate of some goods, in crowns for each ton and mile."""
    return str(dict(task.data.rates).get(goods, "unknown goods"))


class FreightDesk(Tagged):
    """Asks what an order of freight costs; tools look up the distance and the rate."""

    max_turns = 3
    max_new_tokens = 128
    rules = "Cost is tons times miles times rate. Look them up, and end with <cost>N</cost>."
    tag = "cost"
    shown = 20

    def draw(self, rng: random.Random, level: float) -> Draft:
        miles = tuple((town, rng.randint(11, 90)) for town in TOWNS)
        rates = tuple((goods, rng.randint(3, 19)) for goods in GOODS)
        tons = rng.randint(2, 9) if level < 0.5 else rng.randint(21, 99)
        data = Freight(miles, rates, rng.choice(TOWNS), rng.choice(GOODS), tons)
        customer = f"{rng.choice('ABCDEFGHKLMNPRST')}{rng.randint(100, 999)}"
        question = f"Order {customer}: {tons} tons of {data.goods} to {data.town}."
        return Draft(f"{question} What does it cost?", data, question)

    def tools(self) -> Sequence[Callable[..., object]]:
        return [miles_to, rate_of]

    def right(self, data: Freight) -> str:
        return str(data.cost)

    def reference(self, task: Task[Freight]) -> str | Sequence[str]:
        miles = call_text("miles_to", town=task.data.town)
        rate = call_text("rate_of", goods=task.data.goods)
        return (miles + rate, super().reference(task))
