"""Sound episodes, on which faults are planted elsewhere."""

from __future__ import annotations

import asyncio
import random
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from bases_b_fresh7 import asks, drawn_apart

from grpo_core import (
    Environment,
    Episode,
    Message,
    Reward,
    Rollout,
    Task,
    TaskKey,
    Verdict,
)


def turns_of_policy(rollout: Rollout) -> list[str]:
    """Return the texts of the policy's turns."""
    return [message.content for message in rollout.messages if message.role == "assistant"]


def says(text: str) -> tuple[Message, ...]:
    """Return a reply of one message."""
    return (Message("user", text),)


@dataclass(frozen=True, slots=True)
class Paint:
    """Holds the ladles by colour, in ml, what they shall add up to, and one way to it."""

    ladles: Mapping[str, int]
    target: int
    way: tuple[str, ...]


class LadlesOfPaint(Environment[Paint]):
    """Has the policy mix an exact amount of paint with four ladles, one in a turn."""

    max_turns: ClassVar[int] = 4
    max_new_tokens = 16
    replayable = True

    def task(self, key: TaskKey) -> Task[Paint]:
        def draw(rng: random.Random) -> Paint:
            colours = rng.sample(("red", "blue", "white", "ochre", "green"), 4)
            sizes = rng.sample(range(20, 95, 5 if key.level < 0.5 else 1), 4)
            way = tuple(rng.choices(colours, k=4))
            ladles = dict(zip(colours, sizes, strict=True))
            return Paint(ladles, sum(ladles[colour] for colour in way), way)

        paint = drawn_apart(key, draw, lambda drawn: f"{drawn.ladles} {drawn.target}")
        listed = ", ".join(f"{colour} {size} ml" for colour, size in paint.ladles.items())
        question = (
            f"The ladles hold: {listed}. Fill the bucket with exactly {paint.target} ml in four "
            "turns. In each turn pour one full ladle: reply with pour and its colour, as in: "
            "pour black. Colours may be used again."
        )
        return Task(key, asks(question), paint)

    def episode(self, task: Task[Paint]) -> Bucket:
        return Bucket(task.data)

    def reference(self, task: Task[Paint]) -> Sequence[str]:
        return [f"pour {colour}" for colour in task.data.way]


class Bucket(Episode):
    """Holds what is in the bucket."""

    def __init__(self, paint: Paint) -> None:
        self.paint, self.inside, self.seen = paint, 0, 0

    async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        self.pour(messages[-1].content)
        return says(f"The bucket holds {self.inside} ml. Next ladle?")

    def pour(self, turn: str) -> None:
        """Carry out a turn; one that names no ladle changes nothing."""
        self.seen += 1
        self.inside += self.paint.ladles.get(turn.strip(" \t\r\n").removeprefix("pour "), 0)

    async def verdict(self, rollout: Rollout) -> Verdict:
        for turn in turns_of_policy(rollout)[self.seen :]:
            self.pour(turn)
        right = self.inside == self.paint.target
        return Verdict({"reward": Reward(float(right))}, passed=right, answer=f"{self.inside} ml")


@dataclass(frozen=True, slots=True)
class Kiln:
    """Holds how a kiln answers to its dial."""

    base: int
    slope: int
    right: int
    """The setting that is asked for."""
    most: int
    """The largest setting."""


SIMULATION = """
import sys, time
base, slope, setting = map(int, sys.stdin.readline().split())
time.sleep(0.1)
print(base + slope * setting, flush=True)
"""
"""The program that stands in for the kiln."""


class KilnDial(Environment[Kiln]):
    """Has the policy find the setting of a kiln; a helper program says how hot it gets."""

    max_turns: ClassVar[int] = 6
    max_new_tokens = 16
    replayable = True

    def task(self, key: TaskKey) -> Task[Kiln]:
        def draw(rng: random.Random) -> tuple[int, Kiln]:
            most = 30 if key.level < 0.5 else 60
            kiln = Kiln(rng.randint(20, 200), rng.randint(9, 21), rng.randint(1, most), most)
            return rng.randint(1000, 9999), kiln

        number, kiln = drawn_apart(key, draw, lambda drawn: str(drawn[0]))
        question = (
            f"Kiln {number} gets hotter by the same number of degrees with each step of its dial, "
            f"which goes from 0 to {kiln.most}. Find the setting for "
            f"{kiln.base + kiln.slope * kiln.right} degrees. In each turn reply with a setting, as "
            "in: SET 99. You have 6 turns."
        )
        return Task(key, asks(question), kiln)

    def episode(self, task: Task[Kiln]) -> Heating:
        return Heating(task.data)

    def reference(self, task: Task[Kiln]) -> Sequence[str]:
        return ("SET 0", f"SET {task.data.right}")


class Heating(Episode):
    """Holds the last setting of the dial."""

    def __init__(self, kiln: Kiln) -> None:
        self.kiln, self.setting = kiln, -1

    async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        if not self.turn_dial(messages[-1].content):
            return says(f"Reply with SET and a number from 0 to {self.kiln.most}.")
        degrees = await self.measure()
        if self.setting == self.kiln.right:
            return None
        return says(self.shown(degrees))

    def shown(self, degrees: int) -> str:
        """Return how a measurement is told to the policy."""
        return f"{degrees} degrees at {self.setting}."

    def turn_dial(self, turn: str) -> bool:
        """Carry out a turn, and return whether it was one."""
        match = re.fullmatch("SET ([0-9]{1,2})", turn.strip(" \t\r\n"), re.ASCII)
        self.setting = int(match[1]) if match and int(match[1]) <= self.kiln.most else -1
        return self.setting >= 0

    async def measure(self) -> int:
        """Return how hot the kiln gets, as the helper program says."""
        program = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", "-c", SIMULATION),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            asked = f"{self.kiln.base} {self.kiln.slope} {self.setting}\n".encode()
            printed, _ = await program.communicate(asked)
            return int(printed)
        finally:
            if program.returncode is None:
                program.kill()
                await program.wait()

    async def verdict(self, rollout: Rollout) -> Verdict:
        turns = turns_of_policy(rollout)
        self.turn_dial(turns[-1] if turns else "")
        right = self.setting == self.kiln.right
        return Verdict({"reward": Reward(float(right))}, passed=right, answer=str(self.setting))


@dataclass(frozen=True, slots=True)
class Shed:
    """Holds the seeds in the bags and those that are wanted, by name."""

    bags: dict[str, int]
    wanted: Mapping[str, int]


class SeedBags(Environment[Shed]):
    """Has the policy take the seeds for some beds out of bags, which hold only so many."""

    max_turns: ClassVar[int] = 4
    max_new_tokens = 16
    replayable = True

    def task(self, key: TaskKey) -> Task[Shed]:
        kinds = 2 + round(key.level)

        def draw(rng: random.Random) -> tuple[str, Shed]:
            bags, wanted, beds = {}, {}, []
            for kind in rng.sample(("beans", "corn", "peas", "squash", "chard", "kale"), kinds):
                rows, each = rng.randint(3, 12), rng.randint(6, 19)
                wanted[kind] = rows * each
                bags[kind] = wanted[kind] + rng.randint(1, wanted[kind] - 1)
                beds.append(f"{rows} rows of {each} {kind}")
            return ", ".join(beds), Shed(bags, wanted)

        beds, shed = drawn_apart(key, draw, lambda drawn: drawn[0])
        question = (
            f"You sow {beds}, one seed for each plant. Take exactly the seeds that you need, one "
            "kind in a turn: reply as in: take 5 lentils. Nothing can be put back."
        )
        return Task(key, asks(question), shed)

    def episode(self, task: Task[Shed]) -> Sowing:
        return Sowing(task.data)

    def reference(self, task: Task[Shed]) -> Sequence[str]:
        return [f"take {number} {kind}" for kind, number in task.data.wanted.items()]


class Sowing(Episode):
    """Holds what is left in the bags, and what was taken."""

    def __init__(self, shed: Shed) -> None:
        self.wanted = shed.wanted
        self.left, self.taken, self.seen = dict(shed.bags), dict.fromkeys(shed.wanted, 0), 0

    async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        told = self.take(messages[-1].content)
        return None if self.taken == self.wanted else says(told)

    def take(self, turn: str) -> str:
        """Carry out a turn, and return what the policy is told."""
        self.seen += 1
        match = re.fullmatch("take ([0-9]{1,4}) ([a-z]{1,20})", turn.strip(" \t\r\n"), re.ASCII)
        if match is None or match[2] not in self.left:
            return "There is no such bag."
        number, kind = int(match[1]), match[2]
        if number > self.left[kind]:
            return f"There are not so many {kind} in the bag."
        self.left[kind] -= number
        self.taken[kind] += number
        return f"You have {self.taken[kind]} {kind}."

    async def verdict(self, rollout: Rollout) -> Verdict:
        for turn in turns_of_policy(rollout)[self.seen :]:
            self.take(turn)
        right = self.taken == self.wanted
        taken = ", ".join(f"{number} {kind}" for kind, number in self.taken.items())
        return Verdict({"reward": Reward(float(right))}, passed=right, answer=taken)


_LISTED_SYMBOLS = "anchor bell crown drum eye feather glove harp"
_SYMBOLS = _LISTED_SYMBOLS.split()


class PairsOfCards(Environment[tuple[str, ...]]):
    """Has the policy find the pairs of a memory game by turning up two cards in a turn."""

    max_turns: ClassVar[int] = 8
    max_new_tokens = 8
    replayable = True

    def task(self, key: TaskKey) -> Task[tuple[str, ...]]:
        pairs = 3 + round(key.level)

        def draw(rng: random.Random) -> tuple[int, tuple[str, ...]]:
            number = rng.randint(1000, 9999)
            deck = rng.sample(_SYMBOLS, pairs) * 2
            rng.shuffle(deck)
            return number, tuple(deck)

        number, deck = drawn_apart(key, draw, lambda drawn: str(drawn[0]))
        question = (
            f"Deck {number}: {2 * pairs} cards lie face down, numbered from 1. Find the {pairs} "
            "pairs in 8 turns. In each turn reply with the numbers of two cards, as in: 8 7"
        )
        return Task(key, asks(question), deck)

    def episode(self, task: Task[tuple[str, ...]]) -> Flips:
        return Flips(task.data)

    def reference(self, task: Task[tuple[str, ...]]) -> Sequence[str]:
        deck = task.data
        return [
            f"{i + 1} {deck.index(card, i + 1) + 1}"
            for i, card in enumerate(deck)
            if card in deck[i + 1 :]
        ]


class Flips(Episode):
    """Holds which pairs were found, and which turns found one."""

    def __init__(self, deck: Sequence[str]) -> None:
        self.deck = deck
        self.found: set[str] = set()
        self.finds: list[bool] = []

    async def reply(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        told = self.flip(messages[-1].content)
        return None if self.is_over() else says(told)

    def flip(self, turn: str) -> str:
        """Carry out a turn, and return what the policy is told."""
        self.finds.append(False)
        match = re.fullmatch("([1-9]) ([1-9])", turn.strip(" \t\r\n"), re.ASCII)
        places = [int(place) - 1 for place in match.groups()] if match else []
        if len(set(places)) != 2 or max(places) >= len(self.deck):
            return f"Name two cards from 1 to {len(self.deck)}."
        first, second = (self.deck[place] for place in places)
        if first == second and first not in self.found:
            self.finds[-1] = True
            self.found.add(first)
        shown = " and ".join(f"{place + 1} is {self.deck[place]}" for place in places)
        return f"{shown}. Pairs found: {len(self.found)}."

    def is_over(self) -> bool:
        """Return whether all pairs were found."""
        return 2 * len(self.found) == len(self.deck)

    async def verdict(self, rollout: Rollout) -> Verdict:
        for turn in turns_of_policy(rollout)[len(self.finds) :]:
            self.flip(turn)
        return Verdict(
            {"reward": self.pay()}, passed=self.is_over(), answer=f"{len(self.found)} pairs"
        )

    def pay(self) -> Reward:
        """Return the reward of the attempt."""
        return Reward(float(self.is_over()))
