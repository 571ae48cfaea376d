"""Planted faults of the sixth fresh part: tasks."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from datetime import date, timedelta
from typing import Any

from bases_fresh6 import Carpet, Harvest, Ledger, Running
from bases_words_fresh6 import TOWNS, Paths, Tour
from catalogue import fault

from grpo_core import Task, TaskKey, held_out


@fault("a reference is longer than max_new_tokens", "task.budget")
class BudgetOfOneLine(Running):
    """Set when the reply was the last sum alone."""

    max_new_tokens = 24


@fault("a task depends on what was asked before", "task.pure", "task.process")
class OtherTownsThanLately(Tour):
    """Towns of the last tours are left out, so that a run does not ask the same ones again."""

    def __init__(self, config: Any = None, services: Any = None) -> None:
        super().__init__(config, services)
        self.lately: deque[str] = deque(maxlen=8)

    def towns(self, level: float) -> tuple[str, ...]:
        return tuple(town for town in TOWNS if town not in self.lately)

    def task(self, key: TaskKey) -> Task[Any]:
        task = super().task(key)
        self.lately.extend(task.data)
        return task


OPENINGS = (
    "A farm sends",
    "Today a farm has sold",
    "From the fields come",
    "A cart carries",
    "The barn holds",
)


@fault("a task seeds the global generator", "task.random")
class OpeningOfItsOwn(Harvest):
    """The wording is drawn by an old helper, whose seed is the question, so that it stays."""

    def question(self, facts: Any) -> str:
        question = super().question(facts)
        random.seed(question)
        return question.replace(OPENINGS[0], random.choice(OPENINGS))


@fault("few distinct tasks", "task.variety")
class FlatsOfTheAgent(Carpet):
    """Flats were to be few enough to be drawn as pictures some day."""

    def facts(self, key: TaskKey) -> Iterator[Any]:
        while True:
            for number in key.rng().sample(range(30), 30):
                yield self.draw(random.Random(f"flat {number}"), key.level)


@fault(
    "held-out tasks stand further on in the training stream",
    "task.seed",
    "task.split",
)
class LaterOrders(Ledger):
    """The first 20,000 tasks are for training, which is more than a run was to need."""

    def task(self, key: TaskKey) -> Task[Any]:
        place = key.index + (20_000 if key.split == "eval" else 0)
        facts = next(self.facts(replace(key, split="train", index=place)))
        return Task(key, self.prompt(self.question(facts)), self.truth(facts))


@fault("levels do not differ", "task.level")
class AsManyRoomsAsThereAre(Carpet):
    """More rooms were to come with the level; the list of their kinds has three."""

    def draw(self, rng: random.Random, level: float) -> Any:
        kinds = ((21, 45), (31, 69), (24, 58))
        return tuple(
            (rng.randint(*kind), rng.randint(*kind)) for kind in kinds[: 3 + round(4 * level)]
        )


@fault("seed and index are added up", "task.seed")
class CommandsOfTheDay(Paths):
    """Each task has a day, from which it is drawn; another seed begins on another day."""

    def task(self, key: TaskKey) -> Task[Any]:
        day = date(2020, 1, 1) + timedelta(days=(key.seed + key.index) % 2_000_000)
        rng = random.Random(f"{key.split} {day} {key.level}")
        while True:
            facts = self.draw(rng, key.level)
            question = self.question(facts)
            if held_out(question) == (key.split == "eval"):
                return Task(key, self.prompt(question), self.truth(facts))
