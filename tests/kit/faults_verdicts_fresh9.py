"""Environments with one planted fault each, in their verdicts."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from bases_f2_fresh9 import (
    Bench,
    BenchSeats,
    Core,
    DrilledLayers,
    RaffleOdds,
    WashingUpRota,
    meets,
    tau,
)
from bases_f_fresh9 import LateBookFines, Loan, TramLogger, chat
from catalogue import fault

from grpo_core import Reward, Rollout, Services, Task, TaskKey, Verdict


@fault("a canary is paid", "floor.canaries")
class BenchWithoutWishes(BenchSeats):
    """Adds a bench that nobody can fill, but leaves it no wish that could be broken."""

    def canaries(self) -> Sequence[Task[Bench]]:
        key = TaskKey("bench_seats", "eval", 0)
        bench = replace(self.task(key).data, wishes=())
        names = ", ".join(bench.guests)
        prompt = f"Seat {names} on a bench so that each of them has all others to the left."
        return (Task(key, chat(prompt), bench),)


@fault("a reward is not a finite number", "verdict.form")
class RaffleSureOfIt(RaffleOdds):
    """Measures the nats the other way round; for 0% and 100% that is 0 times infinity."""

    def lost(self, true: int, said: int) -> float:
        nats = 0.0
        for right, belief in ((true / 100, said / 100), (1 - true / 100, 1 - said / 100)):
            log = math.log(belief) if belief else -math.inf
            nats += belief * (log - math.log(right))
        return nats

    def score(self, true: int, said: int | None) -> float:
        if said is None:
            return 0.0
        return 1.0 if said == true else max(1 - self.sharpness * self.lost(true, said), 0.0)


@fault("a reward is out of range for rare tasks", "verdict.form")
class RotaByPerson(WashingUpRota):
    """Divides the right days by the people on the list, who are fewer when many are away."""

    def score(self, right_days: int, turns: Sequence[str]) -> float:
        return right_days / len(set(turns))


@fault("a reward is out of range", "verdict.form")
class LayersByRawTau(DrilledLayers):
    """Pays the rank correlation as it is, which is below zero for an order upside down."""

    def score(self, order: Sequence[int] | None) -> float:
        return 0.0 if order is None else tau(order)


@fault("a verdict depends on earlier ones", "verdict.repeat", "floor.other")
class FinesWithFewerTries(LateBookFines):
    """Pays less for each further try at a task, and counts the tries of all attempts together."""

    def __init__(self, config: Any = None, services: Services | None = None) -> None:
        super().__init__(config, services)
        self.tries: Counter[TaskKey] = Counter()

    def verify(self, task: Task[Loan], rollout: Rollout) -> Verdict:
        self.tries[task.key] += 1
        right = self.read(rollout.text) == task.data.cents
        pay = right / self.tries[task.key]
        return Verdict({"reward": Reward(pay)}, passed=right, answer=rollout.text[-40:])


@fault("a verdict depends on the time", "verdict.repeat")
class TramFormWearsOff(TramLogger):
    """Pays for the form at first, and lets that fade by the minutes since the start."""

    def __init__(self, config: Any = None, services: Services | None = None) -> None:
        super().__init__(config, services)
        self.start = time.monotonic()

    def form(self, said: str | None) -> float:
        minutes = (time.monotonic() - self.start) / 60
        return super().form(said) * 0.9**minutes


@fault("passed is the opposite of what is meant", "verdict.passed", "verdict.reference")
class BenchWithBrokenWishes(BenchSeats):
    """Collects the wishes that are broken, and passes on whether there are any."""

    def verify(self, task: Task[Bench], rollout: Rollout) -> Verdict:
        bench = task.data
        seats = self.seats(rollout.text, bench.guests)
        broken = [wish for wish in bench.wishes if seats is None or not meets(seats, wish)]
        score = 0.0 if broken else 1.0
        return Verdict({"reward": Reward(score)}, passed=bool(broken))


@fault("the parts cannot add up to the declared range", "verdict.reference", "declared.contract")
class LayersInTwoParts(DrilledLayers):
    """Pays 0.3 for the top layer and 0.5 for the order; a third part was taken out."""

    parts: ClassVar[Mapping[str, float]] = {"top": 0.3, "order": 0.5}

    def verify(self, task: Task[Core], rollout: Rollout) -> Verdict:
        order = self.order(rollout.text, task.data.layers)
        passed = order is not None and order == sorted(order)
        top = order is not None and order[0] == 0
        return Verdict({"top": Reward(top), "order": Reward(self.score(order))}, passed=passed)
