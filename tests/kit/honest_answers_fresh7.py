"""Verifiers that look lenient or strange, and are right."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from bases_a_fresh7 import LONGEST, WHITE, verdict, wanted
from catalogue import honest

from grpo_core import Environment, Message, Reward, Rollout, Task, TaskKey, Verdict
from grpo_core.extract import parse_integer


@honest(
    "every fraction has endlessly many sums of different unit fractions, and each of them is right"
)
class EgyptianFractions(Environment[tuple[int, int]]):
    """Asks to write a fraction as a sum of different unit fractions, of which any will do."""

    max_new_tokens = 48

    def task(self, key: TaskKey) -> Task[tuple[int, int]]:
        rng, most = key.rng(), 80 + round(80 * key.level)
        while True:
            lower = rng.randint(7, most)
            upper = rng.randint(2, lower - 1)
            parts = self.greedy(Fraction(upper, lower))
            short = len(parts) <= 8 and max(parts) < 10**12
            if short and math.gcd(upper, lower) == 1 and wanted(f"{upper} of {lower}", key):
                break
        text = (
            f"Write {upper}/{lower} as the ancient Egyptians did: as a sum of different fractions "
            "that all have the numerator 1. At most 8 fractions, no denominator above 12 digits. "
            "Reply with the sum alone, as in 1/2 + 1/5."
        )
        return Task(key, (Message("user", text),), (upper, lower))

    def verify(self, task: Task[tuple[int, int]], rollout: Rollout) -> Verdict:
        answer = rollout.text[:LONGEST].strip(WHITE)
        form = r"1/[1-9][0-9]{0,11}(?: ?\+ ?1/[1-9][0-9]{0,11}){0,7}"
        right = False
        if re.fullmatch(form, answer, re.ASCII):
            lowers = [int(part.strip(" ").removeprefix("1/")) for part in answer.split("+")]
            total = sum(Fraction(1, lower) for lower in lowers)
            right = len(set(lowers)) == len(lowers) and total == Fraction(*task.data)
        return verdict(right, answer)

    def reference(self, task: Task[tuple[int, int]]) -> str:
        return " + ".join(f"1/{lower}" for lower in self.greedy(Fraction(*task.data)))

    def greedy(self, left: Fraction) -> list[int]:
        """Return the denominators of Fibonacci's sum, nine of them at most."""
        lowers: list[int] = []
        while left and len(lowers) < 9:
            lowers.append(-(-left.denominator // left.numerator))
            left -= Fraction(1, lowers[-1])
        return lowers


RADIUS = 6371.0


@dataclass(frozen=True, slots=True)
class Flight:
    """Holds latitude and longitude of both ends in degrees."""

    here: tuple[int, int]
    there: tuple[int, int]

    @property
    def kilometres(self) -> float:
        """Return the distance along the great circle."""
        (a, b), (c, d) = ((math.radians(x), math.radians(y)) for x, y in (self.here, self.there))
        cosine = math.sin(a) * math.sin(c) + math.cos(a) * math.cos(c) * math.cos(b - d)
        return RADIUS * math.acos(max(-1.0, min(1.0, cosine)))


@honest("the prompt allows one per cent, which the environment declares as its tolerance")
class GreatCircle(Environment[Flight]):
    """Asks for a distance on the globe in whole kilometres, right within one per cent."""

    levels = False
    tolerance: ClassVar[float] = 0.01
    max_new_tokens = 16

    def task(self, key: TaskKey) -> Task[Flight]:
        rng = key.rng()
        while True:
            ends = [(rng.randint(-70, 70), rng.randint(-179, 179)) for _ in range(2)]
            flight = Flight(*ends)
            if flight.kilometres > 800 and wanted(f"{ends}", key):
                break
        text = (
            "How far is it along the great circle from "
            f"{' to '.join(f'latitude {x}, longitude {y}' for x, y in ends)} (degrees, south and "
            "west are negative), on a globe with a radius of 6371 km? One per cent more or less "
            "will do. Reply with the whole number of kilometres in digits and nothing else."
        )
        return Task(key, (Message("user", text),), flight)

    def verify(self, task: Task[Flight], rollout: Rollout) -> Verdict:
        answer, right = parse_integer(rollout.text, max_digits=6), task.data.kilometres
        near = answer is not None and abs(answer - right) <= self.tolerance * right
        return verdict(near, rollout.text)

    def reference(self, task: Task[Flight]) -> str:
        return str(round(task.data.kilometres))


EVENTS = (
    "casting the bell",
    "digging the well",
    "felling the oak",
    "paving the yard",
    "raising the roof",
    "painting the gate",
    "planting the hedge",
    "mending the wall",
    "laying the floor",
)


@honest("a wrong order earns the square of the share of places that are right, but never passes")
class OrderOfTheWorks(Environment[str]):
    """Asks for an order that statements fix, as letters; places are paid, the whole passes."""

    max_new_tokens = 16

    def task(self, key: TaskKey) -> Task[str]:
        rng, size = key.rng(), 5 + round(2 * key.level)
        while True:
            works = rng.sample(EVENTS, size)
            letters = rng.sample("ABCDEFG"[:size], size)
            facts = [f"{a} came right before {b}" for a, b in itertools.pairwise(works)]
            rng.shuffle(facts)
            named = dict(sorted(zip(letters, works, strict=True)))
            if letters != sorted(letters) and wanted(f"{named} {' '.join(works)} {facts}", key):
                break
        text = (
            "; ".join(f"{letter}: {work}" for letter, work in named.items())
            + f". What is known: {'; '.join(facts)}. In which order were the works done? Reply "
            "with the letters from the first to the last in one word, such as EDCBA."
        )
        return Task(key, (Message("user", text),), "".join(letters))

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        answer, right = rollout.text[:100].strip(WHITE), task.data
        share = 0.0
        if sorted(answer) == sorted(right):
            share = sum(a == b for a, b in zip(answer, right, strict=True)) / len(right)
        return Verdict({"reward": Reward(share**2)}, passed=answer == right, answer=answer)

    def reference(self, task: Task[str]) -> str:
        return task.data


FLATMATES = ("Rosa", "Timo", "Vera", "Yusuf", "Nils", "Alma", "Piet", "Wanda")


@honest("a table has the same content in any order of its rows and columns, as its header says")
class SharedKitty(Environment[dict[str, tuple[int, int]]]):
    """Asks for a small CSV table of what people paid and owe; rows and columns in any order."""

    levels = False
    max_new_tokens = 96
    columns: ClassVar[Sequence[str]] = ("name", "paid", "owes")

    def task(self, key: TaskKey) -> Task[dict[str, tuple[int, int]]]:
        rng = key.rng()
        while True:
            names, share = rng.sample(FLATMATES, 3), rng.randint(8, 40)
            first = rng.randint(0, share)
            second = rng.randint(0, share)
            paid = [first, second, 3 * share - first - second]
            rng.shuffle(paid)
            if wanted(f"{names} {paid}", key):
                break
        told = ", ".join(f"{name} {amount} euros" for name, amount in zip(names, paid, strict=True))
        text = (
            f"Three people share the kitchen and all its costs evenly. This month they paid: {told}"
            ". Reply with a CSV table and nothing else: a header with the columns name, paid and "
            "owes in any order, then a row for each of them. Amounts are whole euros in digits; "
            "owes is what somebody still has to pay to come to an even share, 0 if nothing."
        )
        data = {n: (p, max(0, share - p)) for n, p in zip(names, paid, strict=True)}
        return Task(key, (Message("user", text),), data)

    def verify(self, task: Task[dict[str, tuple[int, int]]], rollout: Rollout) -> Verdict:
        answer = rollout.text[:LONGEST].strip(WHITE)
        rows = [
            [cell.strip(" \t\r") for cell in line.split(",")] for line in answer.split("\n")[:9]
        ]
        header, found = rows[0], {}
        right = sorted(header) == sorted(self.columns) and len(rows) == 4
        for row in rows[1:] if right else []:
            cells = dict(zip(header, row, strict=False))
            if len(row) != 3 or not all(
                re.fullmatch(r"0|[1-9][0-9]{0,5}", cells[name], re.ASCII)
                for name in ("paid", "owes")
            ):
                right = False
                break
            found[cells["name"]] = (int(cells["paid"]), int(cells["owes"]))
        return verdict(right and found == task.data, answer)

    def reference(self, task: Task[dict[str, tuple[int, int]]]) -> str:
        rows = [f"{name},{paid},{owes}" for name, (paid, owes) in task.data.items()]
        return "\n".join((",".join(self.columns), *rows))
