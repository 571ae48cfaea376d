"""Planted faults of the fifth fresh part: tasks."""

from __future__ import annotations

import json
import random
from typing import Any

from bases_fresh5 import DAYS, MONTHS, Fuel, Sensors, Weekdays, sensors
from bases_words_fresh5 import TITLES, Playlist, longer
from catalogue import fault


@fault("a prompt has several right answers, one is accepted", "task.ambiguous")
class AnyOfItsWeekdays(Weekdays):
    """A month has four or five Tuesdays, and the one that was drawn is right."""

    def wording(self, facts: Any) -> str:
        year, month, weekday, _ = facts
        return (
            f"1 January 2027 is a Friday. Give a date in {MONTHS[month - 1]} {year} that is a "
            f"{DAYS[weekday]}. Reply with the date only, as in: 2026-12-31"
        )

    def draw(self, rng: random.Random, level: float) -> Any:
        year = 2027 + rng.randint(0, 1 + round(3 * level))
        return year, rng.randint(1, 12), rng.randrange(7), rng.randrange(4)


@fault("a task seeds the global generator", "task.random")
class PlaylistOfTheModule(Playlist):
    """The songs are drawn by the functions of the module, after its generator was seeded."""

    def draw(self, rng: random.Random, level: float) -> Any:
        random.seed(rng.getrandbits(64))
        songs = tuple((title, random.randint(121, 420)) for title in titles(5 + round(6 * level)))
        limit = random.randint(200, 370)
        apart = len({length for _, length in songs}) == len(songs)
        return (songs, limit) if apart and 2 <= len(longer(songs, limit)) < len(songs) else None


def titles(count: int) -> list[str]:
    """Return some titles in any order."""
    return random.sample(TITLES, count)


@fault("rows with the same prompt have different answers", "task.ambiguous", "task.variety")
class RevisionNotTold(Sensors):
    """The catalogue has a row for each revision, and its box is not in the question."""

    def wording(self, facts: Any) -> str:
        name, _, count, each, _ = facts
        return (
            f"A box holds {count} sensors {name} of {each} g each. How many grams does it weigh "
            "with its packaging, according to the catalogue? Reply with the number only."
        )


@fault("the last training rows are held out, too", "task.split")
class FourFifthsAndAQuarter(Sensors):
    """Both shares were set by hand, and they add up to more than all."""

    train_share = 0.8
    eval_share = 0.25

    def rows(self, split: str) -> tuple[Any, ...]:
        rows = list(sensors())
        random.Random("shuffled once").shuffle(rows)
        if split == "train":
            return tuple(rows[: round(self.train_share * len(rows))])
        return tuple(rows[-round(self.eval_share * len(rows)) :])


@fault("the prompt holds the answer", "task.secret", "floor.echo")
class WholeRecord(Fuel):
    """The record of a trip goes into the prompt with all its fields, also the computed one."""

    def wording(self, facts: Any) -> str:
        tenths, legs = facts
        record = {
            "litres_per_100_km": tenths / 10,
            "legs_km": list(legs),
            "burnt": self.solution(facts),
            "driver": f"D{sum(legs) % 89 + 10}",
        }
        return (
            f"Record of a lorry's trip: {json.dumps(record)}\nHow many litres does it burn in all? "
            "End with litres and two decimals, as in <answer>7.05 l</answer>."
        )
