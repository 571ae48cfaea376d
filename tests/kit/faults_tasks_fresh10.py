"""Tasks that cannot be made, that are too few or too alike, or that lack something."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, replace

from bases_g2_fresh10 import CrateStacks, KnittingCounts
from bases_g_fresh10 import (
    WHITE,
    IntervalNames,
    Notes,
    Poll,
    SeatShares,
    chat,
    judged,
    wanted,
)
from catalogue import fault

from grpo_core import Environment, Message, Rollout, Task, TaskKey, Verdict, held_out
from grpo_core.extract import xml_tag


@fault("a prompt is empty or of a wrong type", "task.made")
class CouncilInOneMessage(SeatShares):
    """Puts rules and question into one message of the user."""

    def made(self, key: TaskKey, question: str, data: Poll) -> Task[Poll]:
        return Task(key, (Message("user", f"{self.rules}\n{question}")), data)  # type: ignore


@fault("a reference is longer than max_new_tokens", "task.budget")
class CouncilOfManyParties(SeatShares):
    """Has councils of eight parties and more, with the budget of a single number."""

    parties = 8
    max_new_tokens = 16


@fault("a task cannot be made", "task.made")
class SleeveWithNeatDecreases(KnittingCounts):
    """Decreases at every third to eighth stitch only, since sleeves look neater so."""

    def round(self, rng: random.Random, stitches: int) -> tuple[str, int]:
        if rng.random() < 0.5:
            more = rng.randint(2, 11)
            return f"make {more} new stitches, knit the rest.", stitches + more
        every = rng.choice([n for n in (3, 4, 5, 6, 7, 8) if stitches % n == 0])
        return f"knit the last 2 of every {every} together.", stitches - stitches // every


@fault("a task seeds the global generator", "task.random")
class CratesOfTheGlobalDice(CrateStacks):
    """Seeds Python's own generator by the key, and draws stacks and moves with it."""

    def generator(self, key: TaskKey) -> random.Random:
        random.seed(f"{key.env}/{key.split}/{key.seed}/{key.index}/{key.level}")
        return random  # type: ignore[return-value]


@fault("few distinct tasks", "task.variety")
class IntervalsFromMiddleC(IntervalNames):
    """Starts every interval at middle C, where beginners feel at home."""

    def draw(self, rng: random.Random, level: float) -> Notes | None:
        signs = ("", "#", "b") if level >= 0.5 else ("", "b")
        return self.between(0, rng.randint(1, 7), 4, "", rng.choice(signs))


@fault("levels do not differ", "task.level")
class CratesByWholeLevels(CrateStacks):
    """Adds four moves for each whole level; stacks are drawn alike for all levels."""

    def generator(self, key: TaskKey) -> random.Random:
        return replace(key, level=0.0).rng("stacks")

    def moves(self, level: float) -> int:
        return 4 + 4 * (int(level) // 2)


WORDS = {
    "bird": "crane eagle finch goose heron quail raven robin stork swift snipe egret pipit swan "
    "wren lark kite rook crow dove duck gull hawk",
    "tree": "alder aspen beech birch cedar elder hazel holly larch maple rowan olive palm pine "
    "teak lime plum pear",
    "fish": "bream perch trout tench skate smelt loach roach sprat pike carp chub dace hake cod "
    "sole tuna ling",
    "fabric": "baize crepe denim linen satin serge tweed voile tulle felt jute lace silk wool "
    "lawn terry plush",
    "tool": "anvil auger brace bevel chisel drill lathe level plane punch spade adze awl file "
    "hammer mallet pliers ratchet",
    "fruit": "apple grape guava lemon mango melon olive peach papaya quince date fig kiwi lime "
    "pear plum cherry damson",
}


@dataclass(frozen=True)
class Clue:
    """Holds a clue and the word that stands in the printed solution."""

    clue: str
    word: str


def _clues() -> list[Clue]:
    """Return a clue for each word and each letter that a crossing word may have given."""
    clues = []
    for kind, words in WORDS.items():
        for word in words.split():
            for place, letter in enumerate(word):
                pattern = " ".join(letter if i == place else "_" for i in range(len(word)))
                clues.append(Clue(f"{kind.capitalize()} ({len(word)}): {pattern}", word))
    return clues


CLUES = _clues()
ROWS = {
    split: [clue for clue in CLUES if held_out(clue.clue) == (split == "eval")]
    for split in ("train", "eval")
}


@fault("rows with the same prompt have different answers", "task.ambiguous")
class CrosswordOfThePaper(Environment[Clue]):
    """Takes clues with one crossing letter from a crossword, and the word of its solution."""

    levels = False
    max_new_tokens = 32

    def size(self, split: str) -> int:
        return len(ROWS[split])

    def task(self, key: TaskKey) -> Task[Clue]:
        clue = ROWS[key.split][key.index]
        rules = "Solve the clue of the crossword. Reply with <word>...</word> in small letters."
        return chat(key, rules, clue.clue, clue)

    def verify(self, task: Task[Clue], rollout: Rollout) -> Verdict:
        block = xml_tag(rollout.text, tag="word")
        given = None if block is None else block.content.strip(WHITE)[:40]
        return judged(given == task.data.word, given)

    def reference(self, task: Task[Clue]) -> str:
        return f"<word>{task.data.word}</word>"


GARAGES = ("Mill Street", "Old Dock", "Theatre", "Station", "Cathedral", "Fairground")


@dataclass(frozen=True)
class Ticket:
    """Holds a stay in a garage, and what it costs."""

    garage: str
    halves: int
    rate: int

    @property
    def fee(self) -> int:
        """Return the fee in cents; every half hour that has begun counts."""
        return self.halves * self.rate


@fault("what decides the answer is not in the prompt", "task.ambiguous")
class GarageFees(Environment[Ticket]):
    """Asks for the fee of a stay in a garage at the rate of that day."""

    max_new_tokens = 64

    def task(self, key: TaskKey) -> Task[Ticket]:
        rng = key.rng()
        while True:
            longest = 32 if key.level < 0.5 else 64
            ticket = Ticket(
                rng.choice(GARAGES), rng.randint(1, longest), rng.choice((40, 55, 60, 75, 90))
            )
            stay = f"{ticket.garage} garage for {ticket.halves // 2} h {ticket.halves % 2 * 30} min"
            if wanted(key, stay):
                rules = "Every half hour has its price. End with the line 'Fee: N', in cents."
                return chat(key, rules, f"A car stood in the {stay}. What is the fee?", ticket)

    def verify(self, task: Task[Ticket], rollout: Rollout) -> Verdict:
        line = rollout.text.strip(WHITE).rpartition("\n")[2].strip(WHITE)
        match = re.fullmatch("Fee: ([1-9][0-9]{0,5})", line, re.ASCII)
        given = match.group(1) if match else None
        return judged(given == str(task.data.fee), given)

    def reference(self, task: Task[Ticket]) -> str:
        return f"Fee: {task.data.fee}"
