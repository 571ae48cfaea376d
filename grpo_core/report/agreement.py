"""Whether a judge agrees with people: pairs of texts of which one is known to be better."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import NormalDist
from typing import Any

from grpo_core.protocol.errors import ConfigError, GrpoError
from grpo_core.protocol.judge import Judge, JudgeRequest
from grpo_core.runs.jsonl import values

FIELDS = ("context", "suffix", "reference", "rubric")


@dataclass(frozen=True, slots=True)
class Pair:
    """Two texts in the same place."""

    better: JudgeRequest
    worse: JudgeRequest


@dataclass(frozen=True, slots=True)
class Agreement:
    """right: pairs in which the better text has the higher score; tied: in which both have the same; failed: of which a text could not be
    judged, and which count in nothing else. errors: what was said of those."""

    right: int
    tied: int
    wrong: int
    failed: int
    errors: tuple[str, ...] = ()

    @property
    def judged(self) -> int:
        return self.right + self.tied + self.wrong

    @property
    def share(self) -> float:
        """Of the judged pairs; a tie is half a right one."""
        return (self.right + self.tied / 2) / self.judged if self.judged else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """95 %, by Wilson's score (JASA 22, 1927)."""
        n, z = self.judged, NormalDist().inv_cdf(0.975)
        if not n:
            return 0.0, 1.0
        middle = (self.share + z * z / (2 * n)) / (1 + z * z / n)
        half = z * sqrt(self.share * (1 - self.share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
        return max(0.0, middle - half), min(1.0, middle + half)


async def agreement(judge: Judge, pairs: Sequence[Pair]) -> Agreement:
    """All texts are judged in one call."""
    try:
        found = await judge.judge([text for pair in pairs for text in (pair.better, pair.worse)])
    except GrpoError:
        raise
    except Exception as error:
        raise GrpoError(f"the judge failed: {type(error).__name__}: {error}") from error
    if len(found) != 2 * len(pairs):
        raise ConfigError(
            f"the judge gave {len(found)} judgements for {2 * len(pairs)} texts; one for each is due"
        )
    counts = {"right": 0, "tied": 0, "wrong": 0, "failed": 0}
    errors = []
    for better, worse in zip(found[::2], found[1::2], strict=True):
        if better.error is not None or worse.error is not None:
            counts["failed"] += 1
            errors.append(better.error or worse.error or "")
        else:
            counts[
                "right"
                if better.score > worse.score
                else "tied"
                if better.score == worse.score
                else "wrong"
            ] += 1
    return Agreement(**counts, errors=tuple(errors))


def read_pairs(path: Path) -> list[Pair]:
    """JSONL: `better` and `worse`, and what a request may have beside its text."""
    pairs = [_pair(row, where) for where, row in values(path, holds="pairs")]
    if not pairs:
        raise ConfigError(
            f"{path} holds no pairs; each line is an object with `better` and `worse`"
        )
    return pairs


def _pair(row: Any, where: str) -> Pair:
    known = {"better", "worse", *FIELDS}
    if (
        not isinstance(row, dict)
        or not {"better", "worse"} <= row.keys() <= known
        or not all(isinstance(v, str) for v in row.values())
    ):
        raise ConfigError(
            f"{where} has to be an object with the texts `better` and `worse`, and if you like {', '.join(FIELDS)}"
        )
    shared = {name: row[name] for name in FIELDS if name in row}
    return Pair(JudgeRequest(row["better"], **shared), JudgeRequest(row["worse"], **shared))
