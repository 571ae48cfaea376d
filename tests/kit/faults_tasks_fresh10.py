"""Tasks that cannot be made, that are too few or too alike, or that lack something."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bases_g2_fresh10 import CrateStacks, KnittingCounts
from bases_g_fresh10 import Draft, IntervalNames, LastLine, SeatShares, Tagged
from catalogue import fault

from grpo_core import Message, Task, TaskKey, held_out


@fault("a prompt is empty or of a wrong type", "task.made")
class CouncilInOneMessage(SeatShares):
    """Puts rules and question into one message of the user."""

    def made(self, key: TaskKey, question: str, data: Any) -> Task[Any]:
        return Task(key, (Message("user", f"{self.rules}\n{question}")), data)  # type: ignore


@fault("a reference is longer than max_new_tokens", "task.budget")
class CouncilOfManyParties(SeatShares):
    """Has councils of eight parties and more, with the budget of a single number."""

    parties = 8
    max_new_tokens = 16


@fault("a task cannot be made", "task.made")
class SleeveWithNeatDecreases(KnittingCounts):
    """Decreases at every third to eighth stitch only, since sleeves look neater so."""

    def intervals(self, stitches: int) -> Sequence[int]:
        return range(3, 9)


@fault("a task seeds the global generator", "task.random")
class CratesOfTheGlobalDice(CrateStacks):
    """Seeds Python's own generator by the key, and draws stacks and moves with it."""

    def generator(self, key: TaskKey) -> random.Random:
        random.seed(f"{key.env}/{key.split}/{key.seed}/{key.index}/{key.level}")
        return random  # type: ignore[return-value]


@fault("few distinct tasks", "task.variety")
class IntervalsFromMiddleC(IntervalNames):
    """Starts every interval at middle C, where beginners feel at home."""

    def draw(self, rng: random.Random, level: float) -> Draft | None:
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


def _pattern(word: str, place: int) -> str:
    return " ".join(letter if i == place else "_" for i, letter in enumerate(word))


CLUES = [
    (f"{kind.capitalize()} ({len(word)}): {_pattern(word, place)}", word)
    for kind, words in WORDS.items()
    for word in words.split()
    for place in range(len(word))
]
"""A clue for each letter of each word that a crossing word may have given, and the word."""
ROWS = {
    split: [clue for clue in CLUES if held_out(clue[0]) == (split == "eval")]
    for split in ("train", "eval")
}


@fault("rows with the same prompt have different answers", "task.ambiguous")
class CrosswordOfThePaper(Tagged):
    """Takes clues with one crossing letter from a crossword, and the word of its solution."""

    levels = False
    max_new_tokens = 32
    rules = "Solve the clue of the crossword. Reply with <word>...</word> in small letters."
    tag = "word"

    def size(self, split: str) -> int:
        return len(ROWS[split])

    def task(self, key: TaskKey) -> Task[str]:
        return self.made(key, *ROWS[key.split][key.index])


GARAGES = ("Mill Street", "Old Dock", "Theatre", "Station", "Cathedral", "Fairground")


@fault("what decides the answer is not in the prompt", "task.ambiguous")
class GarageFees(LastLine):
    """Asks for the fee of a stay in a garage at the rate of that day."""

    max_new_tokens = 64
    rules = "Every half hour has its price. End with the line 'Fee: N', in cents."
    mark = "Fee: "
    form = "[1-9][0-9]{0,5}"

    def draw(self, rng: random.Random, level: float) -> Draft:
        longest = 32 if level < 0.5 else 64
        garage, halves = rng.choice(GARAGES), rng.randint(1, longest)
        stay = f"{garage} garage for {halves // 2} h {halves % 2 * 30} min"
        fee = halves * rng.choice((40, 55, 60, 75, 90))
        return Draft(f"A car stood in the {stay}. What is the fee?", fee, stay)
