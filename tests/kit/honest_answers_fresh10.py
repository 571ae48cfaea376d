"""Environments whose answers look odd, and are judged rightly."""

import itertools
import random
import re
from dataclasses import dataclass
from decimal import Decimal

from bases_g_fresh10 import WHITE, Asked, Draft, LastLine, Tagged, judged
from catalogue import honest

from grpo_core import Reward, Rollout, Task, Verdict
from grpo_core.extract import parse_decimal


@dataclass(frozen=True)
class Bones:
    """Holds the stones in the order in which they were drawn, and in one that fits."""

    stones: tuple[tuple[int, ...], ...]
    solved: tuple[tuple[int, int], ...]


@honest("Every chain of all the stones is right, also one laid from its other end or otherwise.")
class DominoChains(Asked):
    """Asks to lay dominoes in a chain; a stone may be turned, and several chains are right."""

    max_new_tokens = 64
    rules = (
        "Lay all stones in one chain: neighbouring halves are equal, and a stone may be turned. "
        "Reply with the chain alone, such as '1-3 3-5 5-5'."
    )

    def draw(self, rng: random.Random, level: float) -> Draft | None:
        ends = [rng.randint(0, 6) for _ in range(6 + round(4 * level))]
        solved = tuple(itertools.pairwise(ends))
        stones = [tuple(sorted(stone, reverse=rng.random() < 0.5)) for stone in solved]
        rng.shuffle(stones)
        question = "Stones: " + " ".join(f"{a}-{b}" for a, b in stones)
        distinct = len({frozenset(stone) for stone in stones}) == len(stones)
        bones = Bones(tuple(stones), solved)
        return Draft(question, bones) if distinct and not _is_chain(stones) else None

    def verify(self, task: Task[Bones], rollout: Rollout) -> Verdict:
        text = rollout.text.strip(WHITE)
        if not re.fullmatch("[0-6]-[0-6]( [0-6]-[0-6]){1,20}", text):
            return judged(False, text[:80])
        chain = [(int(stone[0]), int(stone[2])) for stone in text.split(" ")]
        used = sorted(tuple(sorted(stone)) for stone in chain)
        all_used = used == sorted(tuple(sorted(stone)) for stone in task.data.stones)
        return judged(all_used and _is_chain(chain), text)

    def right(self, data: Bones) -> str:
        return " ".join(f"{a}-{b}" for a, b in data.solved)


def _is_chain(stones: list[tuple[int, ...]]) -> bool:
    """Return whether neighbouring halves are equal."""
    return all(one[1] == two[0] for one, two in itertools.pairwise(stones))


@honest("The numbers are written in base four with the letters A, C, G and T, as the prompt says.")
class CountingInBases(Asked):
    """Asks for a sum in the numerals of a storage code: A is 0, C is 1, G is 2 and T is 3."""

    max_new_tokens = 48
    rules = (
        "Numerals in base four: A = 0, C = 1, G = 2, T = 3, the highest place first and no "
        "leading A. Reply with the numeral alone."
    )

    def draw(self, rng: random.Random, level: float) -> Draft:
        top = 200 if level < 0.5 else 20000
        first, second = rng.randint(20, top), rng.randint(20, top)
        return Draft(f"{_numeral(first)} + {_numeral(second)}", _numeral(first + second))


def _numeral(number: int) -> str:
    """Return a number above zero in base four."""
    text = ""
    while number:
        number, digit = divmod(number, 4)
        text = "ACGT"[digit] + text
    return text


@honest("Two percent of error are allowed, which the prompt says and `tolerance` declares.")
class WellYields(Tagged):
    """Asks for the yield of a well, from a bucket and a stopwatch; two percent do no harm."""

    tolerance = 0.02
    max_new_tokens = 64
    rules = "Reply with <lpm>N</lpm>, in litres a minute; an error of up to 2 percent is allowed."
    tag = "lpm"

    def draw(self, rng: random.Random, level: float) -> Draft | None:
        bucket, count = rng.randint(7, 25), rng.randint(2, 9)
        tenths = rng.randint(200, 990)
        litres = Decimal(bucket * count * 600) / tenths
        question = f"{count} buckets of {bucket} litres fill in {tenths / 10:.1f} seconds."
        if level >= 0.5:
            lost = rng.randint(5, 20)
            litres = litres * (100 - lost) / 100
            question += f" {lost} percent of the water is then lost on its way."
        return Draft(question, litres.quantize(Decimal("0.01"))) if litres > 5 else None

    def verify(self, task: Task[Decimal], rollout: Rollout) -> Verdict:
        text = self.given(rollout.text)
        given = None if text is None else parse_decimal(text, max_digits=12)
        near = given is not None and abs(given - task.data) <= Decimal("0.02") * task.data
        return judged(near, None if given is None else str(given))


@honest("A set is asked for: order does not matter, a part of it earns a part, all of it passes.")
class SensorsOutOfBand(LastLine):
    """Asks which sensors are out of band, and pays the share that the two sets have in common."""

    max_new_tokens = 64
    rules = (
        "Which sensors are out of band? End with a line such as 'Out: T3, T17'; the order is up "
        "to you. Every one that is missing or wrong costs a part of the reward."
    )
    mark = "Out: "
    form = "T[0-9]{1,2}(?:, T[0-9]{1,2}){0,39}"

    def draw(self, rng: random.Random, level: float) -> Draft | None:
        low = rng.randint(10, 50)
        high = low + rng.randint(5, 20)
        names = [f"T{n}" for n in rng.sample(range(1, 60), 9 + round(8 * level))]
        values = {name: rng.randint(low - 6, high + 6) for name in names}
        faulty = [name for name, value in values.items() if not low <= value <= high]
        lines = "\n".join(f"{name}: {value}" for name, value in values.items())
        question = f"The band goes from {low} to {high}.\n{lines}"
        return Draft(question, faulty) if 2 <= len(faulty) <= 6 else None

    def verify(self, task: Task[list[str]], rollout: Rollout) -> Verdict:
        line = self.given(rollout.text)
        if line is None:
            return judged(False, None)
        given = line.split(", ")
        named, right = set(given), set(task.data)
        if len(named) < len(given):
            return judged(False, self.written(line))
        share = len(named & right) / len(named | right)
        return Verdict({"reward": Reward(share)}, passed=named == right, answer=self.written(line))

    def right(self, data: list[str]) -> str:
        return ", ".join(data)
