"""Tasks that are made or asked in an odd way, and are right."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import ClassVar, Literal

from bases_a_fresh7 import LONGEST, WHITE, verdict, wanted
from catalogue import honest

from grpo_core import Environment, Message, Rollout, Task, TaskKey, Verdict, held_out


def in_base(number: int, base: int) -> str:
    """Return a number as its digits in a base up to ten."""
    return (in_base(number // base, base) if number >= base else "") + str(number % base)


@honest("there are only so many products, each of which is a row: the seed has nothing to choose")
class OctalTable(Environment[str]):
    """Asks for products in base eight; the index alone says which, and the size is declared."""

    levels = False
    max_new_tokens = 16

    @cached_property
    def rows(self) -> dict[str, list[tuple[int, int]]]:
        """Return the pairs of factors of each split, in an order that looks drawn."""
        pairs = list(itertools.combinations(range(9, 47), 2))
        random.Random("octal").shuffle(pairs)
        kept = {pair: held_out(f"{pair[0]} {pair[1]}") for pair in pairs}
        return {
            "train": [pair for pair in pairs if not kept[pair]],
            "eval": [pair for pair in pairs if kept[pair]],
        }

    def size(self, split: Literal["train", "eval"]) -> int:
        return len(self.rows[split])

    def task(self, key: TaskKey) -> Task[str]:
        first, second = self.rows[key.split][key.index]
        text = (
            f"All numbers are in base eight. What is {in_base(first, 8)} times "
            f"{in_base(second, 8)}? Reply with the digits in base eight and nothing else."
        )
        return Task(key, (Message("user", text),), in_base(first * second, 8))

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        answer = rollout.text[:LONGEST].strip(WHITE)
        return verdict(answer == task.data, answer)

    def reference(self, task: Task[str]) -> str:
        return task.data


SPEAKERS = ("the miller", "the weaver", "the smith", "the nurse", "the pilot", "the baker")
PLACES = ("the harbour", "the chapel", "the orchard", "the quarry", "the ferry", "the windmill")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")


@honest("the task is to find and copy a sentence, so the prompt holds it, as is declared")
class ContradictingWitness(Environment[str]):
    """Asks for the sentence of a report that contradicts another one, word by word."""

    answer_in_prompt = True
    max_new_tokens = 40

    def task(self, key: TaskKey) -> Task[str]:
        rng, size = key.rng(), 4 + round(2 * key.level)
        while True:
            people, days = rng.sample(SPEAKERS, size), rng.choices(DAYS, k=size)
            spots = rng.choices(PLACES, k=size)
            said = [
                f"On {day} {person} was only at {spot}."
                for person, day, spot in zip(people, days, spots, strict=True)
            ]
            liar = rng.randrange(size)
            other = rng.choice([place for place in PLACES if place != spots[liar]])
            false = f"On {days[liar]} {people[liar]} was seen at {other}."
            rng.shuffle(said)
            said.insert(rng.randint(0, size), false)
            if wanted(" ".join(said), key):
                break
        text = (
            f"{' '.join(said)}\n\nOne sentence says that somebody was seen; it contradicts another "
            "sentence. Which is the sentence that it contradicts? Reply with that sentence, word "
            "by word as it stands above, and nothing else."
        )
        right = f"On {days[liar]} {people[liar]} was only at {spots[liar]}."
        return Task(key, (Message("user", text),), right)

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        answer = rollout.text[:LONGEST].strip(WHITE)
        return verdict(answer == task.data, answer)

    def reference(self, task: Task[str]) -> str:
        return task.data


TURNS = {"a quarter turn to the left": 1, "a half turn": 2, "a quarter turn to the right": 3}


@honest(
    "there are four answers, and successive tasks go round them from a place that the seed draws, "
    "so that each is right in a quarter of every batch"
)
class QuadrantsInTurn(Environment[str]):
    """Asks for the quadrant of a point after turns about the origin: I, II, III or IV."""

    max_new_tokens = 8
    quadrants: ClassVar[Sequence[str]] = ("I", "II", "III", "IV")

    def task(self, key: TaskKey) -> Task[str]:
        rng, size = key.rng(), 2 + round(5 * key.level)
        right = (replace(key, index=0).rng("shift").randrange(4) + key.index) % 4
        while True:
            turns = rng.choices(list(TURNS), k=size)
            begin = (right - sum(TURNS[turn] for turn in turns)) % 4
            x, y = rng.randint(1, 99), rng.randint(1, 99)
            point = (x if begin in (0, 3) else -x, y if begin in (0, 1) else -y)
            if wanted(f"{x} by {y}", key):
                break
        text = (
            f"The point ({point[0]}, {point[1]}) makes these turns about the origin: "
            f"{', '.join(turns)}. In which quadrant does it end? Reply with I, II, III or IV alone."
        )
        return Task(key, (Message("user", text),), self.quadrants[right])

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        answer = rollout.text[:LONGEST].strip(WHITE)
        return verdict(answer == task.data, answer)

    def reference(self, task: Task[str]) -> str:
        return task.data


CHATTER = (
    "The kettle was on all the time.",
    "Somebody at the door asked for the post.",
    "It had rained since noon.",
    "The radio played an old waltz.",
    "A cat slept on the windowsill.",
    "The lamp in the hall was broken.",
    "Outside a tram went by.",
    "The coat on the hook was still wet.",
)


@honest("a higher level asks the same kind of sum and only puts more between its numbers")
class SumAmongChatter(Environment[int]):
    """Asks what is left of beads; the level adds sentences that have nothing to do with it."""

    max_new_tokens = 16

    def task(self, key: TaskKey) -> Task[int]:
        rng, noise = key.rng(), round(len(CHATTER) * key.level)
        while True:
            start, gone, added, kinds = (
                rng.randint(300, 980),
                rng.randint(20, 90),
                rng.randint(11, 95),
                rng.randint(2, 3),
            )
            if wanted(f"{start} {gone} {added} {kinds}", key):
                break
        told = [
            f"Marta had {start} beads in her box.",
            f"She gave {gone} of them to each of her {kinds} sisters.",
            f"Then she found {added} more under the bed.",
        ]
        for sentence in rng.sample(CHATTER, noise):
            told.insert(rng.randint(0, len(told)), sentence)
        text = (
            f"{' '.join(told)} How many beads are in her box now? Reply with the number in digits "
            "and nothing else."
        )
        return Task(key, (Message("user", text),), start - gone * kinds + added)

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        answer = rollout.text[:LONGEST].strip(WHITE)
        return verdict(answer == str(task.data), answer)

    def reference(self, task: Task[int]) -> str:
        return str(task.data)
