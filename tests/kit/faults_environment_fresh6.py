"""Planted faults of the sixth fresh part: what an environment takes from its surroundings."""

from __future__ import annotations

import random
import shutil
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from bases_desk_fresh6 import Registers, Slices, Votes
from bases_fresh5 import Departures
from bases_talk_fresh6 import Stones
from catalogue import fault


@fault("a prompt depends on an environment variable", "task.process")
class FilledToTheTerminal(Departures):
    """Lines are as long as the terminal is wide, which COLUMNS decides where there is none."""

    def wording(self, facts: Any) -> str:
        width = max(shutil.get_terminal_size().columns - 2, 20)
        return textwrap.fill(super().wording(facts), width, break_long_words=False)


@fault("a prompt depends on the process", "task.process", "task.pure")
class ListsFunctions(Registers):
    """A step is written as the function that it is, with its address, and not by its name."""

    def listed(self, steps: Sequence[Callable[[int], int]]) -> str:
        return ", ".join(map(str, steps))


KINDS = ("basalt", "chalk", "flint", "gneiss", "granite", "marble", "obsidian", "quartz", "slate")


@fault("a task depends on hash() of a text", "task.process")
class StonesOfAKind(Stones):
    """Each kind of stone has a density of its own, made from its name."""

    def posed(self, rng: random.Random, level: float) -> tuple[str, Any]:
        words, weights = super().posed(rng, level)
        kinds = [rng.choice(KINDS) for _ in weights]
        told = ", ".join(f"{number} is of {kind}" for number, kind in enumerate(kinds, 1))
        heavier = [w + hash(kind) % 700 for w, kind in zip(weights, kinds, strict=True)]
        return f"{words} Stone {told}.", heavier


@fault("a verdict depends on the order of a set", "verdict.process")
class ElectedFromASet(Votes):
    """The alphabet, which breaks a tie in the prompt, is forgotten."""

    def elected(self, votes: Sequence[str]) -> str:
        return max(set(votes), key=votes.count)


TRIED = tuple(random.sample(range(4, 90), 12))


@fault("a verdict depends on the process", "verdict.process", "verdict.repeat")
class SlicesOfSomeLists(Slices):
    """The lengths that are tried are drawn once, when the module is imported."""

    def lengths(self) -> Sequence[int]:
        return TRIED
