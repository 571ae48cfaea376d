"""Honest designs whose way to make tasks looks odd."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

from bases_c3_fresh8 import TRAM_ROWS, TramTimes
from bases_c_fresh8 import WHITE, chat, chosen, marked
from catalogue import honest

from grpo_core import Environment, Rollout, Task, TaskKey, Verdict

CLIMBERS = [
    "Anouk",
    "Boris",
    "Clea",
    "Dario",
    "Edda",
    "Falk",
    "Greta",
    "Hugo",
    "Inga",
    "Joris",
    "Kira",
    "Lars",
    "Mara",
    "Nils",
]


@honest(
    "Prompts become shorter as the level rises: fewer comparisons are told, and the others have to "
    "be inferred. The neighbours are always among them, so that one order is right."
)
class ClimbersWithFewerHints(Environment[list[str]]):
    """Asks for the order in which climbers came up, from what is told of pairs."""

    max_new_tokens = 64

    @staticmethod
    def draw(rng: random.Random, level: float) -> tuple[str, list[str]]:
        """Return what is told, and the order."""
        order = rng.sample(CLIMBERS, 6)
        pairs = [(a, b) for n, a in enumerate(order) for b in order[n + 1 :]]
        near = list(pairwise(order))
        far = [pair for pair in pairs if pair not in near]
        told = near + rng.sample(far, round(len(far) * (1 - level)))
        rng.shuffle(told)
        lines = [
            f"{a} came before {b}." if rng.random() < 0.5 else f"{b} came after {a}."
            for a, b in told
        ]
        return " ".join(lines) + " In which order did they come?", order

    def task(self, key: TaskKey) -> Task[list[str]]:
        text, order = chosen(key, self.draw)
        return chat(key, "Reply with the six names, the first one first: A > B > C", text, order)

    def verify(self, task: Task[list[str]], rollout: Rollout) -> Verdict:
        parts = rollout.text.split(">") if len(rollout.text) < 300 else []
        return marked([part.strip(WHITE) for part in parts] == task.data, rollout.text)

    def reference(self, task: Task[list[str]]) -> str:
        return " > ".join(task.data)


@honest(
    "The prompt is raw text for a base model, which goes on with a table, and there are just two "
    "steps of difficulty: numbers below 4096, and from level 0.5 on numbers of five digits."
)
class BinaryTableGoesOn(Environment[int]):
    """Has a table of numbers and their binary digits continued."""

    max_new_tokens = 32

    @staticmethod
    def draw(rng: random.Random, level: float) -> tuple[str, int]:
        """Return a number as text and as itself."""
        number = rng.randint(128, 4095) if level < 0.5 else rng.randint(10_000, 65_535)
        return str(number), number

    def task(self, key: TaskKey) -> Task[int]:
        text, number = chosen(key, self.draw)
        return Task(key, f"decimal\tbinary\n6\t110\n37\t100101\n90\t1011010\n{text}\t", number)

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        return marked(rollout.text.strip(WHITE) == f"{task.data:b}", rollout.text)

    def reference(self, task: Task[int]) -> str:
        return f"{task.data:b}\n"


TOWNS = [
    "Aalen",
    "Bergen",
    "Calais",
    "Dover",
    "Evora",
    "Faro",
    "Ghent",
    "Hanko",
    "Izmir",
    "Jena",
    "Kotor",
    "Lodz",
    "Malmo",
    "Narva",
    "Oulu",
    "Pula",
    "Quimper",
    "Riga",
    "Sligo",
    "Turku",
    "Udine",
    "Varna",
    "Wismar",
    "Zadar",
]


@honest(
    "Every prompt holds its answer, and the same towns are held out as in training: the task is to "
    "find something in a text, and the texts differ."
)
class ParcelInTheLedger(Environment[str]):
    """Asks where a parcel of a ledger went."""

    max_new_tokens = 12
    answer_in_prompt = True

    @staticmethod
    def draw(rng: random.Random, level: float) -> tuple[str, str]:
        """Return a ledger with a question, and the town."""
        count = 4 + round(8 * level)
        towns, parcels = rng.sample(TOWNS, count), rng.sample(range(1000, 9999), count)
        lines = [
            f"parcel {parcel}, {rng.randint(200, 9000)} g, from {rng.choice(TOWNS)} to {town}"
            for parcel, town in zip(parcels, towns, strict=True)
        ]
        asked = rng.randrange(count)
        return "\n".join(lines) + f"\nWhere did {parcels[asked]} go?", towns[asked]

    def task(self, key: TaskKey) -> Task[str]:
        text, town = chosen(key, self.draw)
        return chat(key, "Reply with the town alone.", text, town)

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        return marked(rollout.text.strip(WHITE) == task.data, rollout.text)

    def reference(self, task: Task[str]) -> str:
        return task.data


@honest(
    "Seed and level change nothing, and half of all rows are held out: a fixed list has a size, "
    "each pass has every row, and odd and even rows never share one."
)
class TramsByTurns(TramTimes):
    """Asks the even rows of a list in training, and the odd ones in evaluation."""

    def rows(self, split: str) -> Sequence[tuple[str, str]]:
        return TRAM_ROWS[0::2] if split == "train" else TRAM_ROWS[1::2]
