"""Sound environments with episodes: a shunting yard, a board of breakers and a reservoir."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from bases_f3_fresh9 import spoken
from bases_f_fresh9 import WHITE, chat, drawn

from grpo_core import Environment, Episode, Message, Reward, Rollout, Task, TaskKey, Verdict

TRACKS = "ABC"
State = tuple[tuple[str, ...], ...]
"""The wagons on tracks A, B and C; the last one of a track is at its open end."""


@dataclass(frozen=True, slots=True)
class Yard:
    """Holds a shunting job, and moves that do it."""

    name: str
    start: State
    goal: State
    moves: tuple[str, ...]


def moved(state: State, move: str) -> State | None:
    """Return the state after a move such as "A>B"; None if it cannot be made."""
    found = re.fullmatch(r"([ABC])>([ABC])", move, re.ASCII)
    if found is None or found[1] == found[2]:
        return None
    source, target = TRACKS.index(found[1]), TRACKS.index(found[2])
    if not state[source]:
        return None
    tracks = [list(track) for track in state]
    tracks[target].append(tracks[source].pop())
    return tuple(map(tuple, tracks))


def pictured(state: State) -> str:
    """Return a state in words."""
    tracks = zip(TRACKS, state, strict=True)
    return "; ".join(f"{name}: {' '.join(track) or 'empty'}" for name, track in tracks)


class ShuntingYard(Environment[Yard]):
    """Has the policy move wagons one by one until each track is as it should be."""

    max_turns = 8
    max_new_tokens = 8
    replayable = True

    def yard(self, rng: random.Random, key: TaskKey) -> Yard:
        """Return a job of five to seven moves."""
        while True:
            wagons = [f"{rng.choice('FHKRT')}{number}" for number in rng.sample(range(10, 99), 5)]
            first, second = sorted((rng.randint(1, 4), rng.randint(1, 4)))
            start: State = (
                tuple(wagons[:first]),
                tuple(wagons[first:second]),
                tuple(wagons[second:]),
            )
            moves, state, seen = [], start, {start}
            while len(moves) < 5 + round(2 * key.level):
                move = f"{rng.choice(TRACKS)}>{rng.choice(TRACKS)}"
                after = moved(state, move)
                if after is None:
                    continue
                moves.append(move)
                state = after
                if state in seen:
                    break
                seen.add(state)
            else:
                if self.wanted(start, state):
                    return Yard(f"Yard {rng.randint(1, 99)}", start, state, tuple(moves))

    def wanted(self, start: State, goal: State) -> bool:
        """Return whether a job is worth asking: at least two wagons end on another track."""
        homes = {wagon: i for i, track in enumerate(start) for wagon in track}
        return sum(homes[wagon] != i for i, track in enumerate(goal) for wagon in track) >= 2

    def question(self, yard: Yard) -> str:
        """Return the question."""
        return (
            f"{yard.name} stands like this, open ends to the right: {pictured(yard.start)}. It "
            f"should stand like this: {pictured(yard.goal)}. Move one wagon a turn, from an open "
            f"end to an open end, with replies such as C>A. You have {self.max_turns} moves."
        )

    def task(self, key: TaskKey) -> Task[Yard]:
        yard = drawn(key, lambda rng: self.yard(rng, key), self.question)
        return Task(key, chat(self.question(yard)), yard)

    def episode(self, task: Task[Yard]) -> Shunting:
        return Shunting(task.data)

    def reference(self, task: Task[Yard]) -> tuple[str, ...]:
        return task.data.moves


class Shunting(Episode):
    """Holds where the wagons are."""

    def __init__(self, yard: Yard) -> None:
        self.yard, self.state, self.taken = yard, yard.start, 0

    def done(self) -> bool:
        """Return whether the job is done."""
        return self.state == self.yard.goal

    def take(self, text: str) -> bool:
        """Make a turn's move, if it is one that can be made."""
        self.taken += 1
        after = None if self.done() or len(text) > 40 else moved(self.state, text.strip(WHITE))
        self.state = self.state if after is None else after
        return after is not None

    async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        made = self.take(messages[-1].content)
        if self.done():
            return None
        return (Message("user", f"{'' if made else 'No move. '}{pictured(self.state)}."),)

    async def verdict(self, rollout: Rollout) -> Verdict:
        for text in spoken(rollout.messages)[self.taken :]:
            self.take(text)
        return Verdict({"reward": Reward(self.done())}, passed=self.done())


@dataclass(frozen=True, slots=True)
class House:
    """Holds a house and its breakers: the room of each, and the room that is asked for."""

    address: str
    rooms: tuple[str, ...]
    asked: str

    @property
    def breaker(self) -> int:
        """Return the number of the right breaker."""
        return self.rooms.index(self.asked) + 1


ROOMS = (
    "attic",
    "cellar",
    "kitchen",
    "hall",
    "bath",
    "pantry",
    "study",
    "nursery",
    "porch",
    "laundry",
)
ROADS = ("Fern Street", "Mole End", "Canal Side", "Pound Lane", "Cooper's Hill", "Linden Way")


class BreakerBoard(Environment[House]):
    """Has the policy find the breaker of a room by switching some off; it may name one once."""

    max_turns = 8
    max_new_tokens = 8
    replayable = True

    def house(self, rng: random.Random, key: TaskKey) -> House:
        """Return a house with five to nine breakers."""
        rooms = tuple(rng.sample(ROOMS, 5 + round(4 * key.level)))
        address = f"{rng.randint(1, 200)} {rng.choice(ROADS)}"
        return House(address, rooms, rng.choice(rooms))

    def question(self, house: House) -> str:
        """Return the question, which does not depend on the wiring."""
        return (
            f"At {house.address} the breakers 1 to {len(house.rooms)} feed, in an unknown order: "
            f"{', '.join(sorted(house.rooms))}. Which one feeds the {house.asked}? A reply such as "
            "off 2 tries a breaker. A reply such as feeds 2 is your answer, and you have one."
        )

    def task(self, key: TaskKey) -> Task[House]:
        house = drawn(key, lambda rng: self.house(rng, key), self.question)
        return Task(key, chat(self.question(house)), house)

    def episode(self, task: Task[House]) -> Fusebox:
        return Fusebox(task.data)

    def reference(self, task: Task[House]) -> str:
        return f"feeds {task.data.breaker}"


class Fusebox(Episode):
    """Holds what was answered, and how often a breaker was tried."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.answer: int | None = None
        self.taken = 0

    def take(self, text: str) -> int | None:
        """Take a turn, and return the breaker that it tries."""
        self.taken += 1
        text = text.strip(WHITE) if len(text) <= 40 else ""
        found = re.fullmatch(r"(off|feeds) ([1-9])", text, re.ASCII)
        if found is None or int(found[2]) > len(self.house.rooms):
            return None
        if found[1] == "feeds":
            self.answer = int(found[2]) if self.answer is None else self.answer
            return None
        return int(found[2])

    async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        tried = self.take(messages[-1].content)
        if self.answer is not None:
            return None
        return (Message("user", "Off or feeds?" if tried is None else self.darkens(tried)),)

    def darkens(self, breaker: int) -> str:
        """Return what happens when a breaker is switched off."""
        return f"The {self.house.rooms[breaker - 1]} goes dark. You switch it on again."

    async def verdict(self, rollout: Rollout) -> Verdict:
        for text in spoken(rollout.messages)[self.taken :]:
            self.take(text)
        right = self.answer == self.house.breaker
        return Verdict({"reward": Reward(right)}, passed=right, metrics={"turns": self.taken})


@dataclass(frozen=True, slots=True)
class Lake:
    """Holds a reservoir: the mark it has to be kept at, and the inflows of each hour."""

    name: str
    mark: int
    hours: tuple[tuple[int, ...], ...]


DAMS = ("Edersee", "Kielder", "Bargi", "Vajra", "Hume", "Serre", "Kaptai", "Oyster Creek")
HOURS = 4


class ReservoirKeeper(Environment[Lake]):
    """Has the policy let out water for four hours; each hour at the mark earns a quarter."""

    max_turns = HOURS
    max_new_tokens = 12
    replayable = True

    def lake(self, rng: random.Random, key: TaskKey) -> Lake:
        """Return a reservoir with one to three streams."""
        streams = 1 + round(2 * key.level)
        hours = tuple(tuple(rng.randint(11, 79) for _ in range(streams)) for _ in range(HOURS))
        return Lake(rng.choice(DAMS), rng.randint(400, 700), hours)

    def question(self, lake: Lake) -> str:
        """Return the question, which holds the first hour's inflow."""
        return (
            f"The {lake.name} reservoir stands at its mark of {lake.mark}. Each hour I tell you "
            "what flows in during the hour, and you reply with what to let out, as: release 5. At "
            f"the end of each of {HOURS} hours it has to stand at its mark. "
            f"First hour: {inflow(lake.hours[0])}."
        )

    def task(self, key: TaskKey) -> Task[Lake]:
        lake = drawn(key, lambda rng: self.lake(rng, key), self.question)
        return Task(key, chat(self.question(lake)), lake)

    def episode(self, task: Task[Lake]) -> Watch:
        return Watch(task.data)

    def reference(self, task: Task[Lake]) -> tuple[str, ...]:
        return tuple(f"release {sum(streams)}" for streams in task.data.hours)


def inflow(streams: Sequence[int]) -> str:
    """Return an hour's inflow in words."""
    return " and ".join(map(str, streams))


class Watch(Episode):
    """Holds the level of the water at the end of each hour so far."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.level, self.hour = lake.mark, 0
        self.levels: list[int] = []

    def take(self, text: str) -> None:
        """Let an hour pass; a turn of another form lets nothing out."""
        found = re.fullmatch(r"release (0|[1-9][0-9]{0,3})", text[:40].strip(WHITE), re.ASCII)
        out = int(found[1]) if found is not None and len(text) <= 40 else 0
        self.level = max(0, self.level + sum(self.lake.hours[self.hour]) - out)
        self.hour += 1
        self.levels.append(self.level)

    async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        self.take(messages[-1].content)
        if self.hour >= HOURS:
            return None
        told = f"It stands at {self.level}. Next hour: {inflow(self.lake.hours[self.hour])}."
        return (Message("user", told),)

    def finish(self, rollout: Rollout) -> None:
        """Let the hours of turns pass that no reply has seen."""
        for text in spoken(rollout.messages)[self.hour : HOURS]:
            self.take(text)

    async def verdict(self, rollout: Rollout) -> Verdict:
        self.finish(rollout)
        kept = tuple((level == self.lake.mark) / HOURS for level in self.levels)
        passed = len(kept) == HOURS and all(kept)
        return Verdict({"reward": Reward(turns=kept)}, passed=passed)
