"""Planted faults of the fifth fresh part: spellings, and what time they take."""

from __future__ import annotations

import re
from string import whitespace
from typing import Any

from bases_fresh5 import BLANK, Fuel, Semitones
from bases_words_fresh5 import Playlist, Signature
from catalogue import fault

from grpo_core import Rollout, Task, Verdict


@fault("a pattern backtracks without end", "floor.large", "cost.time")
class CommasOrSpaces(Semitones):
    """Each single space may be the one before the comma or the one after it."""

    row = re.compile("(?:[A-G]#? ?,? ?)+")

    def wording(self, facts: Any) -> str:
        return super().wording(facts).replace("and spaces between", "and spaces or commas between")

    def read(self, text: str) -> Any:
        said = text.strip(BLANK)
        return " ".join(re.split("[ ,]+", said)) if self.row.fullmatch(said) else None


@fault("a pattern behind a prefix backtracks without end", "floor.large", "cost.time")
class ParametersByPattern(Signature):
    """A name may be one parameter or several, as comma and space are both optional."""

    head = re.compile(r"def ([a-z_]+)\(((?:[a-z_]+,? ?)*)\):")

    def read(self, text: str) -> Any:
        found = self.head.fullmatch(text.strip(BLANK))
        return None if found is None else (found[1], found[2].split(", "))

    def same(self, truth: Any, answer: Any) -> bool:
        return bool(answer == self.read(truth))


@fault("time grows with the square of the length", "floor.large", "cost.time")
class GoesRoundInCircles(Playlist):
    """A metric for replies that go round in circles."""

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        verdict = super().verify(task, rollout)
        words = rollout.text.split()
        repeated = sum(words.count(word) > 1 for word in words) / max(len(words), 1)
        return Verdict(
            verdict.rewards,
            passed=verdict.passed,
            answer=verdict.answer,
            metrics={"repeated": repeated},
        )


@fault("white space inside the answer is dropped", "floor.spelling", "floor.near")
class SpaceBeforeTheUnit(Fuel):
    """The space before the unit was to be optional; now "1 42.50 l" is a number, too."""

    def same(self, truth: Any, answer: Any) -> bool:
        return without_space(truth) == without_space(answer)


def without_space(text: str) -> str:
    """Return the text without its white space."""
    return text.translate(dict.fromkeys(map(ord, whitespace)))
