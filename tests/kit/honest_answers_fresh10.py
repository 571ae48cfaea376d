"""Environments whose answers look odd, and are judged rightly."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from decimal import Decimal

from bases_g_fresh10 import WHITE, chat, judged, wanted
from catalogue import honest

from grpo_core import Environment, Reward, Rollout, Task, TaskKey, Verdict
from grpo_core.extract import parse_decimal, xml_tag


@dataclass(frozen=True)
class Bones:
    """Holds the stones in the order in which they were drawn, and in one that fits."""

    stones: tuple[tuple[int, int], ...]
    solved: tuple[tuple[int, int], ...]


@honest("Every chain of all the stones is right, also one laid from its other end or otherwise.")
class DominoChains(Environment[Bones]):
    """Asks to lay dominoes in a chain; a stone may be turned, and several chains are right."""

    max_new_tokens = 64
    rules = (
        "Lay all stones in one chain: neighbouring halves are equal, and a stone may be turned. "
        "Reply with the chain alone, such as '1-3 3-5 5-5'."
    )

    def task(self, key: TaskKey) -> Task[Bones]:
        rng = key.rng()
        while True:
            ends = [rng.randint(0, 6) for _ in range(6 + round(4 * key.level))]
            solved = tuple(itertools.pairwise(ends))
            stones = [tuple(sorted(stone, reverse=rng.random() < 0.5)) for stone in solved]
            rng.shuffle(stones)
            question = "Stones: " + " ".join(f"{a}-{b}" for a, b in stones)
            distinct = len({frozenset(stone) for stone in stones}) == len(stones)
            if distinct and not _is_chain(stones) and wanted(key, question):
                return chat(key, self.rules, question, Bones(tuple(stones), solved))

    def verify(self, task: Task[Bones], rollout: Rollout) -> Verdict:
        text = rollout.text.strip(WHITE)
        if not re.fullmatch("[0-6]-[0-6]( [0-6]-[0-6]){1,20}", text):
            return judged(False, text[:80])
        chain = [(int(stone[0]), int(stone[2])) for stone in text.split(" ")]
        used = sorted(tuple(sorted(stone)) for stone in chain)
        all_used = used == sorted(tuple(sorted(stone)) for stone in task.data.stones)
        return judged(all_used and _is_chain(chain), text)

    def reference(self, task: Task[Bones]) -> str:
        return " ".join(f"{a}-{b}" for a, b in task.data.solved)


def _is_chain(stones: list[tuple[int, ...]]) -> bool:
    """Return whether neighbouring halves are equal."""
    return all(one[1] == two[0] for one, two in itertools.pairwise(stones))


@dataclass(frozen=True)
class Count:
    """Holds a number as it is written with the four letters."""

    letters: str


@honest("The numbers are written in base four with the letters A, C, G and T, as the prompt says.")
class CountingInBases(Environment[Count]):
    """Asks for a sum in the numerals of a storage code: A is 0, C is 1, G is 2 and T is 3."""

    max_new_tokens = 48
    rules = (
        "Numerals in base four: A = 0, C = 1, G = 2, T = 3, the highest place first and no "
        "leading A. Reply with the numeral alone."
    )

    def task(self, key: TaskKey) -> Task[Count]:
        rng = key.rng()
        top = 200 if key.level < 0.5 else 20000
        while True:
            first, second = rng.randint(20, top), rng.randint(20, top)
            question = f"{_numeral(first)} + {_numeral(second)}"
            if wanted(key, question):
                return chat(key, self.rules, question, Count(_numeral(first + second)))

    def verify(self, task: Task[Count], rollout: Rollout) -> Verdict:
        text = rollout.text.strip(WHITE)
        return judged(text == task.data.letters, text[:40])

    def reference(self, task: Task[Count]) -> str:
        return task.data.letters


def _numeral(number: int) -> str:
    """Return a number above zero in base four."""
    text = ""
    while number:
        number, digit = divmod(number, 4)
        text = "ACGT"[digit] + text
    return text


@dataclass(frozen=True)
class Well:
    """Holds the water that a well yields, in litres a minute."""

    litres: Decimal


@honest("Two percent of error are allowed, which the prompt says and `tolerance` declares.")
class WellYields(Environment[Well]):
    """Asks for the yield of a well, from a bucket and a stopwatch; two percent do no harm."""

    tolerance = 0.02
    max_new_tokens = 64
    rules = "Reply with <lpm>N</lpm>, in litres a minute; an error of up to 2 percent is allowed."

    def task(self, key: TaskKey) -> Task[Well]:
        rng = key.rng()
        while True:
            bucket, count = rng.randint(7, 25), rng.randint(2, 9)
            tenths = rng.randint(200, 990)
            litres = Decimal(bucket * count * 600) / tenths
            if key.level >= 0.5:
                lost = rng.randint(5, 20)
                litres = litres * (100 - lost) / 100
            question = f"{count} buckets of {bucket} litres fill in {tenths / 10:.1f} seconds."
            if key.level >= 0.5:
                question += f" {lost} percent of the water is then lost on its way."
            if litres > 5 and wanted(key, question):
                return chat(key, self.rules, question, Well(litres.quantize(Decimal("0.01"))))

    def verify(self, task: Task[Well], rollout: Rollout) -> Verdict:
        block = xml_tag(rollout.text, tag="lpm")
        given = None if block is None else parse_decimal(block.content, max_digits=12)
        right = task.data.litres
        near = given is not None and abs(given - right) <= Decimal("0.02") * right
        return judged(near, None if given is None else str(given))

    def reference(self, task: Task[Well]) -> str:
        return f"<lpm>{task.data.litres}</lpm>"


@dataclass(frozen=True)
class Readings:
    """Holds the names of the sensors that are out of their band."""

    faulty: tuple[str, ...]


@honest("A set is asked for: order does not matter, a part of it earns a part, all of it passes.")
class SensorsOutOfBand(Environment[Readings]):
    """Asks which sensors are out of band, and pays the share that the two sets have in common."""

    max_new_tokens = 64
    rules = (
        "Which sensors are out of band? End with a line such as 'Out: T3, T17'; the order is up "
        "to you. Every one that is missing or wrong costs a part of the reward."
    )

    def task(self, key: TaskKey) -> Task[Readings]:
        rng = key.rng()
        while True:
            low = rng.randint(10, 50)
            high = low + rng.randint(5, 20)
            names = [f"T{n}" for n in rng.sample(range(1, 60), 9 + round(8 * key.level))]
            values = {name: rng.randint(low - 6, high + 6) for name in names}
            faulty = tuple(name for name, value in values.items() if not low <= value <= high)
            lines = "\n".join(f"{name}: {value}" for name, value in values.items())
            question = f"The band goes from {low} to {high}.\n{lines}"
            if 2 <= len(faulty) <= 6 and wanted(key, question):
                return chat(key, self.rules, question, Readings(faulty))

    def verify(self, task: Task[Readings], rollout: Rollout) -> Verdict:
        line = rollout.text.strip(WHITE).rpartition("\n")[2].strip(WHITE)
        if not re.fullmatch("Out: T[0-9]{1,2}(, T[0-9]{1,2}){0,39}", line, re.ASCII):
            return judged(False, None)
        given = line.removeprefix("Out: ").split(", ")
        named, right = set(given), set(task.data.faulty)
        if len(named) < len(given):
            return judged(False, line)
        share = len(named & right) / len(named | right)
        return Verdict({"reward": Reward(share)}, passed=named == right, answer=line)

    def reference(self, task: Task[Readings]) -> str:
        return "Out: " + ", ".join(task.data.faulty)
