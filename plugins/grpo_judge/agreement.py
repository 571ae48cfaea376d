"""Measure how often a judge agrees with people, on pairs of texts of which one is better."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_core import ConfigError, GrpoError, Judge, JudgeRequest
from grpo_core.config.user_files import user_values
from grpo_core.figures.statistics import wilson_interval
from grpo_core.protocol.ties import exceeds, same_reward

FIELDS = ("context", "suffix", "reference", "rubric")
"""The optional fields of a judge request, which both texts of a pair share."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two texts for the same place, one of which people prefer."""

    better: JudgeRequest
    worse: JudgeRequest


@dataclass(frozen=True, slots=True)
class Agreement:
    """The counts of pairs by how the judge scored their two texts."""

    right: int
    """Pairs in which the better text has the higher score."""
    tied: int
    """Pairs in which both texts have the same score."""
    wrong: int
    """Pairs in which the worse text has the higher score."""
    failed: int
    """Pairs with a text that could not be judged; they count in nothing else."""
    errors: tuple[str, ...] = ()
    """The judge's error for each failed pair."""

    @property
    def judged(self) -> int:
        """Return the number of pairs of which both texts have a score."""
        return self.right + self.tied + self.wrong

    @property
    def share(self) -> float:
        """Return the share of judged pairs that are right; a tie counts as half."""
        return (self.right + self.tied / 2) / self.judged if self.judged else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """Return the 95 % confidence interval of the share."""
        return wilson_interval(self.share, self.judged, confidence=0.95)


async def agreement(judge: Judge, pairs: Sequence[Pair]) -> Agreement:
    """Return how often `judge` prefers the better text. All texts are judged in one call.

    Raises:
        GrpoError: The judge failed.
        ConfigError: The judge did not return one judgement for each text.
    """
    try:
        judgements = await judge.judge(
            [text for pair in pairs for text in (pair.better, pair.worse)]
        )
    except GrpoError:
        raise
    except Exception as error:
        raise GrpoError(f"the judge failed: {type(error).__name__}: {error}") from error
    if len(judgements) != 2 * len(pairs):
        raise ConfigError(
            f"the judge returned {len(judgements)} judgements for {2 * len(pairs)} texts; it must "
            "return one for each text"
        )
    couples = list(zip(judgements[::2], judgements[1::2], strict=True))
    errors = [
        better.error or worse.error or ""
        for better, worse in couples
        if better.error is not None or worse.error is not None
    ]
    judged = [(b.score, w.score) for b, w in couples if b.error is None and w.error is None]
    return Agreement(
        right=sum(exceeds(better, worse) for better, worse in judged),
        tied=sum(same_reward(better, worse) for better, worse in judged),
        wrong=sum(exceeds(worse, better) for better, worse in judged),
        failed=len(errors),
        errors=tuple(errors),
    )


def read_pairs(path: Path) -> list[Pair]:
    """Return the pairs of a JSONL file.

    Each line is an object with `better` and `worse`, and optionally the `FIELDS` of a request.

    Raises:
        ConfigError: The file cannot be read, holds no pairs, or has a line of another form.
    """
    pairs = [_parse_pair(row, where) for where, row in user_values(path, holds="pairs")]
    if not pairs:
        raise ConfigError(
            f"{path} holds no pairs; each line must be an object with `better` and `worse`"
        )
    return pairs


def _parse_pair(row: Any, where: str) -> Pair:
    """Return the pair of one line; `where` names the line in an error."""
    if (
        not isinstance(row, dict)
        or not {"better", "worse"} <= row.keys() <= {"better", "worse", *FIELDS}
        or not all(isinstance(v, str) for v in row.values())
    ):
        raise ConfigError(
            f"{where} must be an object with the texts `better` and `worse`, and optionally "
            f"{', '.join(FIELDS)}"
        )
    shared = {name: row[name] for name in FIELDS if name in row}
    return Pair(JudgeRequest(row["better"], **shared), JudgeRequest(row["worse"], **shared))
