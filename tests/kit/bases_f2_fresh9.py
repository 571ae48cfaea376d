"""Sound environments with a single reply: raffles, rock layers, seats, meters and rotas."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import ClassVar

from bases_f_fresh9 import LONGEST, WHITE, chat, drawn

from grpo_core import Environment, Reward, Rollout, Task, TaskKey, Verdict


@dataclass(frozen=True, slots=True)
class Drum:
    """Holds the tickets of a raffle: all, those that win, and blanks that were taken out."""

    fair: str
    tickets: int
    winning: int
    taken: int

    @property
    def percent(self) -> int:
        """Return the chance of the next ticket."""
        return 100 * self.winning // (self.tickets - self.taken)


FAIRS = ("harvest", "school", "harbour", "winter", "parish", "spring", "firemen's", "orchard")


class RaffleOdds(Environment[Drum]):
    """Asks for a chance in percent; the nearer in the sense of information, the better paid."""

    max_new_tokens = 8
    sharpness: ClassVar[float] = 60.0

    def drum(self, rng: random.Random, key: TaskKey) -> Drum:
        """Return a drum; from level 0.5 on some blanks were taken out before."""
        while True:
            left = rng.choice((20, 25, 40, 50, 200, 400))
            winning = rng.randint(1, left - 1)
            taken = rng.randint(3, 60) if key.level >= 0.5 else 0
            percent = 100 * winning / left
            shown = {left + taken, winning, taken}
            if percent == int(percent) and 3 <= percent <= 97 and int(percent) not in shown:
                return Drum(rng.choice(FAIRS), left + taken, winning, taken)

    def question(self, drum: Drum) -> str:
        """Return the question."""
        taken = f" {drum.taken} blanks have been drawn and are gone." if drum.taken else ""
        return (
            f"The drum of the {drum.fair} fair held {drum.tickets} tickets, {drum.winning} of them "
            f"with a prize.{taken} How likely does the next ticket win? "
            "Reply with a whole percentage, such as 7%, and nothing else."
        )

    def task(self, key: TaskKey) -> Task[Drum]:
        drum = drawn(key, lambda rng: self.drum(rng, key), self.question)
        return Task(key, chat(self.question(drum)), drum)

    def said(self, text: str) -> int | None:
        """Return the percentage of a reply."""
        found = re.fullmatch(r"(0|[1-9][0-9]|[1-9]|100)%", text[:50].strip(WHITE), re.ASCII)
        return int(found[1]) if found is not None and len(text) <= 50 else None

    def lost(self, true: int, said: int) -> float:
        """Return the nats that are lost by believing `said` percent instead of `true`."""
        right, belief = true / 100, min(max(said, 1), 99) / 100
        return right * math.log(right / belief) + (1 - right) * math.log((1 - right) / (1 - belief))

    def score(self, true: int, said: int | None) -> float:
        """Return what a percentage earns."""
        if said is None:
            return 0.0
        return 1.0 if said == true else max(0.0, 1 - self.sharpness * self.lost(true, said))

    def verify(self, task: Task[Drum], rollout: Rollout) -> Verdict:
        said = self.said(rollout.text)
        score = self.score(task.data.percent, said)
        return Verdict({"reward": Reward(score)}, passed=said == task.data.percent)

    def reference(self, task: Task[Drum]) -> str:
        return f"{task.data.percent}%"


@dataclass(frozen=True, slots=True)
class Core:
    """Holds a drilled core: the layers from the top down, and the order in which they are told."""

    site: str
    layers: tuple[str, ...]
    depths: tuple[int, ...]
    told: tuple[int, ...]


ROCKS = ("chalk", "marl", "shale", "basalt", "tuff", "gypsum", "gravel", "slate", "loess", "chert")
SITES = ("Oberau", "Quiet Fen", "Saltmoor", "Varna", "Ledbury", "Crane Hill", "Ystad", "Mull")


class DrilledLayers(Environment[Core]):
    """Asks for the layers of a core from top to bottom; pays by pairs in the right order."""

    max_new_tokens = 48

    def core(self, rng: random.Random, key: TaskKey) -> Core:
        """Return a core of five to seven layers, not told in their order or its reverse."""
        number = 5 + round(2 * key.level)
        while True:
            told = tuple(rng.sample(range(number), number))
            if abs(tau(told)) <= 0.4:
                break
        depths = tuple(sorted(rng.sample(range(3, 240), number)))
        return Core(rng.choice(SITES), tuple(rng.sample(ROCKS, number)), depths, told)

    def question(self, core: Core) -> str:
        """Return the question."""
        told = ", ".join(f"{core.layers[i]} at {core.depths[i]} m" for i in core.told)
        return (
            f"The core of {core.site} met {told}. Write the layers from top to bottom, "
            'as in "sand > clay > granite", and nothing else.'
        )

    def task(self, key: TaskKey) -> Task[Core]:
        core = drawn(key, lambda rng: self.core(rng, key), self.question)
        return Task(key, chat(self.question(core)), core)

    def order(self, text: str, layers: Sequence[str]) -> list[int] | None:
        """Return the places of the named layers; None unless each is named once."""
        names = text[:LONGEST].strip(WHITE).split(" > ")
        if len(text) > LONGEST or sorted(names) != sorted(layers):
            return None
        return [layers.index(name) for name in names]

    def score(self, order: Sequence[int] | None) -> float:
        """Return what an order earns."""
        return 0.0 if order is None else max(0.0, tau(order))

    def verify(self, task: Task[Core], rollout: Rollout) -> Verdict:
        order = self.order(rollout.text, task.data.layers)
        passed = order is not None and order == sorted(order)
        return Verdict({"reward": Reward(self.score(order))}, passed=passed)

    def reference(self, task: Task[Core]) -> str:
        return " > ".join(task.data.layers)


def tau(order: Sequence[int]) -> float:
    """Return Kendall's rank correlation of an order with the sorted one."""
    pairs = list(combinations(order, 2))
    return sum(1 if first < second else -1 for first, second in pairs) / len(pairs)


GUESTS = ("Ada", "Ben", "Cleo", "Dov", "Ewa", "Finn", "Gus", "Hana", "Ivo", "Jule", "Kit", "Lena")


@dataclass(frozen=True, slots=True)
class Bench:
    """Holds guests on a bench and the wishes: (kind, guest, other guest or "")."""

    guests: tuple[str, ...]
    """Sorted by name."""
    wishes: tuple[tuple[str, str, str], ...]
    plan: tuple[str, ...]
    """Seats that meet all wishes, from left to right."""


def meets(seats: Sequence[str], wish: tuple[str, str, str]) -> bool:
    """Return whether seats meet a wish."""
    kind, guest, other = wish
    place = seats.index(guest)
    if kind == "inner":
        return 0 < place < len(seats) - 1
    return seats.index(other) == place + 1 if kind == "touch" else seats.index(other) > place


class BenchSeats(Environment[Bench]):
    """Asks for guests on a bench by their wishes; any order that meets all of them is right."""

    max_new_tokens = 40

    def bench(self, rng: random.Random, key: TaskKey) -> Bench:
        """Return five to seven guests; the alphabetical order never meets the wishes."""
        while True:
            plan = tuple(rng.sample(GUESTS, 5 + round(2 * key.level)))
            first, early = rng.randrange(len(plan) - 1), rng.randrange(len(plan) - 2)
            wishes = (
                ("touch", plan[first], plan[first + 1]),
                ("before", plan[early], plan[rng.randrange(early + 2, len(plan))]),
                ("inner", plan[rng.randrange(1, len(plan) - 1)], ""),
            )
            if not all(meets(sorted(plan), wish) for wish in wishes):
                return Bench(tuple(sorted(plan)), wishes, plan)

    def question(self, bench: Bench) -> str:
        """Return the question."""
        words = {
            "touch": "{} sits directly to the left of {}",
            "before": "{} sits somewhere to the left of {}",
            "inner": "{} does not sit at an end{}",
        }
        wishes = "; ".join(words[kind].format(guest, other) for kind, guest, other in bench.wishes)
        return (
            f"Seat {', '.join(bench.guests)} on a bench: {wishes}. Reply with the names from left "
            "to right, with commas between them."
        )

    def task(self, key: TaskKey) -> Task[Bench]:
        bench = drawn(key, lambda rng: self.bench(rng, key), self.question)
        return Task(key, chat(self.question(bench)), bench)

    def seats(self, text: str, guests: Sequence[str]) -> list[str] | None:
        """Return the seats of a reply; None unless each guest has one."""
        if len(text) > 300:
            return None
        names = [name.strip(WHITE) for name in text.split(",")]
        return names if sorted(names) == sorted(guests) else None

    def verify(self, task: Task[Bench], rollout: Rollout) -> Verdict:
        seats = self.seats(rollout.text, task.data.guests)
        right = seats is not None and all(meets(seats, wish) for wish in task.data.wishes)
        return Verdict({"reward": Reward(right)}, passed=right, answer=rollout.text[:80])

    def reference(self, task: Task[Bench]) -> str:
        return ", ".join(task.data.plan)


@dataclass(frozen=True, slots=True)
class Meter:
    """Holds the last reading of a gas meter and what was burnt since, month by month."""

    street: str
    before: int
    used: tuple[int, ...]

    @property
    def shown(self) -> str:
        """Return the five digits that the meter shows now."""
        return f"{self.before + sum(self.used):05d}"


STREETS = ("Mill Lane", "Elm Row", "Quay Street", "Dyer's Yard", "Kiln Close", "Abbey Rise")


class GasMeterNow(Environment[Meter]):
    """Asks for the five digits that a gas meter shows."""

    max_new_tokens = 12

    def meter(self, rng: random.Random, key: TaskKey) -> Meter:
        """Return a meter with one to four months."""
        used = tuple(rng.randint(35, 480) for _ in range(1 + round(3 * key.level)))
        street = f"{rng.randint(1, 90)} {rng.choice(STREETS)}"
        return Meter(street, rng.randint(700, 90_000), used)

    def question(self, meter: Meter) -> str:
        """Return the question."""
        used = ", then ".join(f"{units} units" for units in meter.used)
        return (
            f"The gas meter at {meter.street} showed {meter.before:05d}. Since then {used} were "
            "burnt. What does it show now? Reply with its five digits."
        )

    def task(self, key: TaskKey) -> Task[Meter]:
        meter = drawn(key, lambda rng: self.meter(rng, key), self.question)
        return Task(key, chat(self.question(meter)), meter)

    def digits(self, text: str) -> str:
        """Return the digits of a reply."""
        return text.strip(WHITE)

    def verify(self, task: Task[Meter], rollout: Rollout) -> Verdict:
        right = len(rollout.text) <= 40 and self.digits(rollout.text) == task.data.shown
        return Verdict({"reward": Reward(right)}, passed=right, answer=rollout.text[:40])

    def reference(self, task: Task[Meter]) -> str:
        return task.data.shown


@dataclass(frozen=True, slots=True)
class Rota:
    """Holds who washes up in turn, who is away, who was last, and for how many days is asked."""

    house: str
    people: tuple[str, ...]
    away: tuple[str, ...]
    last: str
    days: int

    @property
    def turns(self) -> list[str]:
        """Return who washes up on the days that are asked for."""
        here = [person for person in self.people if person not in self.away]
        start = here.index(self.last) + 1
        return [here[(start + day) % len(here)] for day in range(self.days)]


class WashingUpRota(Environment[Rota]):
    """Asks who washes up on the next days; pays for the days before the first mistake."""

    max_new_tokens = 40

    def rota(self, rng: random.Random, key: TaskKey) -> Rota:
        """Return a rota of five to seven people, now and then with three of them away."""
        people = tuple(rng.sample(GUESTS, 5 + round(2 * key.level)))
        absent = 3 if rng.random() < 0.08 else 1
        away = tuple(rng.sample(people, absent))
        here = [person for person in people if person not in away]
        last = rng.choice([person for person in here[:-1] if person != people[-1]])
        return Rota(f"house {rng.randint(1, 60)}", people, away, last, len(people) - 2)

    def question(self, rota: Rota) -> str:
        """Return the question."""
        return (
            f"In {rota.house} the washing up goes round in this order: {', '.join(rota.people)}. "
            f"Away and skipped: {', '.join(rota.away)}. {rota.last} did it yesterday. Who does it "
            f"on the next {rota.days} days? Reply with the names, with slashes between them."
        )

    def task(self, key: TaskKey) -> Task[Rota]:
        rota = drawn(key, lambda rng: self.rota(rng, key), self.question)
        return Task(key, chat(self.question(rota)), rota)

    def score(self, right_days: int, turns: Sequence[str]) -> float:
        """Return what the days before the first mistake earn."""
        return right_days / len(turns)

    def verify(self, task: Task[Rota], rollout: Rollout) -> Verdict:
        turns = task.data.turns
        names = [name.strip(WHITE) for name in rollout.text[:500].split("/")]
        if len(rollout.text) > 300 or len(names) != len(turns):
            names = []
        wrong = (i for i, name in enumerate(names) if name != turns[i])
        right_days = next(wrong, len(names))
        passed = right_days == len(turns)
        return Verdict({"reward": Reward(self.score(right_days, turns))}, passed=passed)

    def reference(self, task: Task[Rota]) -> str:
        return " / ".join(task.data.turns)
