"""Tasks that are unsuited to training or measurement, third fresh part."""

from __future__ import annotations

import hashlib
import random
from dataclasses import replace
from functools import cache
from typing import Any

from bases_fresh3 import NAMES, ROADS, Arrival, Initials, Squares, Tally, Walk, squared
from catalogue import fault

from grpo_core import Message, Task, TaskKey


@fault("the note for who marks the answers is in the system message", "task.secret")
class MarkersNote(Arrival):
    def asked(self, key: TaskKey, *content: Any) -> Task[Any]:
        task = super().asked(key, *content)
        note = Message("system", f"Timetable quiz. Full marks for {task.data}, none otherwise.")
        return replace(task, prompt=(note, *task.prompt))


@fault("a case number is the answer in another base", "task.secret")
class CaseNumber(Tally):
    def question(self, wards: tuple[tuple[int, ...], ...]) -> str:
        return f"Case {self.solved(wards):x}\n{super().question(wards)}"


@fault("the direction of a time change is drawn and not told", "task.ambiguous")
class ClocksChange(Arrival):
    levels = False

    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return 60 * rng.randrange(24), 5 * rng.randint(13, 32), rng.choice((60, -60))

    def question(self, start: int, minutes: int, _change: int) -> str:  # type: ignore[override]
        return f"On the way the clocks change by an hour. {super().question(start, minutes)}"

    def solved(self, start: int, minutes: int, change: int) -> str:  # type: ignore[override]
        return super().solved(start, minutes + change)


@fault("what the prompt refers to is not attached", "task.ambiguous", "task.variety")
class MapIsMissing(Walk):
    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return *super().drawn(key, rng), rng.randint(1, 60)

    def question(self, start: Any, steps: Any, number: int) -> str:  # type: ignore[override]
        return (
            f"Follow the walk of {len(steps)} steps on map {number}. How far east and north of the "
            'well does it end? Reply with JSON: {"east": ..., "north": ...}'
        )

    def solved(self, start: Any, steps: Any, number: int) -> dict[str, int]:  # type: ignore[override]
        return super().solved(start, steps)


@fault("a digest of the items in their order decides the split", "task.split")
class OrderedDigest(Initials):
    levels = False

    def fitting(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        ages = range(20, 20 + 3 * len(NAMES), 3)
        while True:
            people = tuple(rng.sample(list(zip(NAMES[:9], ages, strict=False)), 4))
            digest = hashlib.sha256(repr(people).encode()).digest()
            if (digest[0] < 51) == (key.split == "eval"):
                return (people,)


@fault("a coin decides the split, not the content", "task.split")
class CoinSplit(Arrival):
    levels = False

    def fitting(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        """Return what the coin gave to the split."""
        drawing = random.Random(f"{key.seed} {key.index}")
        while True:
            content = 60 * drawing.randrange(24), 5 * drawing.randint(13, 36)
            if (drawing.random() < 0.2) == (key.split == "eval"):
                return content


@cache
def shuffled(split: str) -> list[int]:
    """Return the rows of a split."""
    rows = sorted(squared()["train"])
    random.Random(split).shuffle(rows)
    return rows[:5000] if split == "train" else rows[-1200:]


@fault("each split shuffles the rows by itself and takes its share", "task.split", "task.seed")
class ShuffledTwice(Squares):
    def size(self, split: str) -> int:
        return len(shuffled(split))

    def fitting(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return (shuffled(key.split)[key.index],)


@fault("the index makes tasks harder, the level does not", "task.level")
class HarderByIndex(Walk):
    def generator(self, key: TaskKey) -> random.Random:
        return replace(key, level=0.0).rng()

    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        return super().drawn(replace(key, level=min(key.index / 5000, 1.0)), rng)


@fault(
    "the index is divided, as if each attempt had an index of its own", "task.seed", "task.variety"
)
class IndexOfAttempts(Tally):
    group_size = 8

    def generator(self, key: TaskKey) -> random.Random:
        return replace(key, index=key.index // self.group_size).rng()


@fault("the data are a view of a dictionary", "task.pickle")
class ViewOfPlaces(Walk):
    def solved(self, start: Any, steps: Any) -> Any:
        return super().solved(start, steps).items()

    def accepts(self, truth: Any, answer: Any) -> bool:
        return super().accepts(dict(truth), answer)

    def reference(self, task: Task[Any]) -> str:
        return super().reference(replace(task, data=dict(task.data)))


@fault("most walks are round trips", "floor.constant", "floor.balance", "floor.other")
class RoundTrips(Walk):
    """The walker starts at the well."""

    def drawn(self, key: TaskKey, rng: random.Random) -> tuple[Any, ...]:
        _, steps = super().drawn(key, rng)
        if rng.random() < 0.8:
            back = dict(zip(ROADS, ("south", "north", "west", "east"), strict=True))
            half = steps[: len(steps) // 2]
            returned = [(back[road], length) for road, length in half]
            steps = (*half, *rng.sample(returned, len(returned)))
        return (0, 0), steps


@fault("a seed of 0 is taken for none", "task.made")
class SeedWanted(Arrival):
    def generator(self, key: TaskKey) -> random.Random:
        if not key.seed:
            raise ValueError("set a seed, so that the tasks can be made again")
        return key.rng()
