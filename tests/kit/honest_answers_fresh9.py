"""Honest designs in how answers are read and compared, of the kinds E."""

from __future__ import annotations

from decimal import Decimal
from typing import ClassVar

from bases_e2_fresh9 import FailedRequests
from bases_e_fresh9 import NOTES, CellarStrength, CratesInOrder, MelodyUp
from catalogue import honest

from grpo_core import Reward, Verdict
from grpo_core.extract import parse_decimal

PITCHES = {note: pitch for pitch, note in enumerate(NOTES)}
PITCHES |= {"Db": 1, "Eb": 3, "Gb": 6, "Ab": 8, "Bb": 10}


@honest("F sharp and G flat are the same pitch, and the prompt allows either; no other note is")
class MelodyUpInSharpsOrFlats(MelodyUp):
    """Asks for a transposed row of notes, each spelled with a sharp or a flat."""

    spelling: ClassVar[str] = "Write C# or Db as you like, and so on."

    def right(self, moved: str, reply: str) -> bool:
        notes = reply.split(" ")
        return [PITCHES.get(note) for note in notes] == [PITCHES[n] for n in moved.split(" ")]


@honest("the requests are a set, so that any order is right; none may be missing, extra or twice")
class FailedRequestsAsASet(FailedRequests):
    """Asks for the failed requests of a log, in any order."""

    order: ClassVar[str] = "in any order"

    def right(self, bad: list[str], named: list[str]) -> bool:
        return len(named) == len(bad) and set(named) == set(bad)


@honest("a hydrometer reads to two per cent; the prompt says so, and the tolerance is declared")
class CellarStrengthByHydrometer(CellarStrength):
    """Asks for the strength of a brew, and is content with two per cent more or less."""

    tolerance: ClassVar[float] = 0.02
    rules: ClassVar[str] = CellarStrength.rules + " Two per cent more or less are fine."

    def right(self, truth: Decimal, content: str) -> bool:
        number = parse_decimal(content, max_digits=8)
        return number is not None and abs(number - truth) <= truth * Decimal("0.02")


@honest("each crate in its place earns a fifth, so that groups differ; only the whole order passes")
class CratesPaidByPlace(CratesInOrder):
    """Asks for the order of five crates, and pays for each place that is right."""

    def verdict(self, order: list[str], answer: list[object]) -> Verdict:
        letters = [crate for crate in answer if isinstance(crate, str)]
        complete = len(answer) == len(order) and sorted(letters) == sorted(order)
        places = sum(a == b for a, b in zip(order, letters, strict=True)) if complete else 0
        return Verdict(
            {"reward": Reward(places / len(order))},
            passed=places == len(order),
            answer=" ".join(letters)[:100],
        )
