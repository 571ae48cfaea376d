"""Planted faults in how tasks are made."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from bases_c2_fresh8 import ChequeAmounts
from bases_c3_fresh8 import (
    TRAM_ROWS,
    OtherStrand,
    SleeveStitches,
    TramTimes,
    WholeMasses,
    WrittenDivision,
)
from bases_c_fresh8 import InfusionRates, WagonWeights, chat
from catalogue import fault

from grpo_core import Task, TaskKey, held_out

FORMS = [
    "Figures: 41\nWords: forty-one\n\nFigures: {figures}\nWords:\n",
    "Pay $93\nin words: ninety-three\nPay ${figures}\nin words:\n",
    "75 = seventy-five\n60 = sixty\n{figures} =\n",
    "",
]


@fault("a prompt is empty or of a wrong type", "task.made")
class ChequeBlankForm(ChequeAmounts):
    """Draws one of the forms, of which the last, after the last rule, is empty."""

    def prompt(self, key: TaskKey, figures: str) -> str:
        return key.rng("form").choice(FORMS).rstrip("\n").format(figures=figures)


@fault("a reference is longer than max_new_tokens", "task.budget")
class DivisionInSixteenTokens(WrittenDivision):
    """Leaves room for the quotient alone, but asks for every line of the division."""

    max_new_tokens = 16


@fault("a task draws from the global generator", "task.pure", "task.random")
class StrandsByChance(OtherStrand):
    """Draws the bases with the functions of `random`, so a key has another strand each time."""

    def strand(self, rng: random.Random, level: float) -> str:
        return "".join(random.choices("ACGT", k=8 + round(20 * level)))


@fault("a task seeds the global generator", "task.random")
class InfusionsFromASeed(InfusionRates):
    """Seeds `random` by the key and draws from it, which everyone else in the process feels."""

    def task(self, key: TaskKey) -> Task[int]:
        random.seed(f"{key.split}/{key.index}/{key.seed}/{key.level}")
        while True:
            rng = random.Random(random.getrandbits(64))
            text, drops = self.draw(rng, key.level)
            if held_out(text) == (key.split == "eval"):
                return chat(key, self.RULES, text, drops)


WELL_KNOWN = [
    "CH4",
    "CH4O",
    "CH4N2O",
    "C2H4O2",
    "C2H6O",
    "C3H6O",
    "C3H6O3",
    "C3H7NO2",
    "C3H8O3",
    "C4H6O6",
    "C5H10O5",
    "C6H6",
    "C6H8O6",
    "C6H8O7",
    "C6H12O6",
    "C7H8",
    "C8H8O3",
    "C8H9NO2",
    "C8H10N4O2",
    "C8H18",
    "C10H14N2",
    "C10H16",
    "C10H18O",
    "C12H22O11",
    "C13H18O2",
    "C16H32O2",
    "C17H19NO3",
    "C17H21NO4",
    "C18H36O2",
    "C20H24N2O2",
    "C27H46O",
]


@fault("few distinct tasks", "task.variety")
class WellKnownMolecules(WholeMasses):
    """Asks for molecules that people know, of which there are 31; the large ones above."""

    def counts(self, rng: random.Random, level: float) -> dict[str, int]:
        name = rng.choice(WELL_KNOWN[round(9 * level) : 22 + round(9 * level)])
        atoms = dict(re.findall("([A-Z])([0-9]*)", name))
        return {element: int(number or 1) for element, number in atoms.items()}

    def task(self, key: TaskKey) -> Task[int]:
        rng = key.rng()
        while True:
            text, mass = self.draw(rng, key.level)
            if held_out(text, 0.4) == (key.split == "eval"):
                return chat(key, self.RULES, text, mass)


@fault("held-out tasks stand further on in the training stream", "task.seed")
class SleevesFurtherOn(SleeveStitches):
    """Numbers the patterns of a seed, and holds out those from 2000 on; a long run meets them."""

    def task(self, key: TaskKey) -> Task[int]:
        number = key.index if key.split == "train" else 2000 + key.index
        rng = random.Random(f"sleeves {key.seed} {key.level} {number}")
        text, stitches = self.draw(rng, 0.2 + 0.8 * key.level)
        return chat(key, "Reply with the number alone.", text, stitches)


@fault("levels do not differ", "task.level")
class TrainsAllOfSix(WagonWeights):
    """Means to go up from six wagons, but every level stays at them."""

    @staticmethod
    def wagons(level: float) -> int:
        return max(6, 2 + round(4 * level))


@fault("levels fall", "task.level")
class StrandsShorten(OtherStrand):
    """Takes the level for the help that a learner gets: the strands shorten as it rises."""

    def strand(self, rng: random.Random, level: float) -> str:
        return "".join(rng.choices("ACGT", k=28 - round(20 * level)))


@fault("the last training rows are held out, too", "task.split")
class TramsOnBothLists(TramTimes):
    """Cuts the list at 80 % for training and from 70 % for the held-out rows."""

    def rows(self, split: str) -> Sequence[tuple[str, str]]:
        count = len(TRAM_ROWS)
        return TRAM_ROWS[: count * 8 // 10] if split == "train" else TRAM_ROWS[count * 7 // 10 :]
