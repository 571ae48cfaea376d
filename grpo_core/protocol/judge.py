"""Define the interface of judge models, which score texts in their context.

This module contains only types; plugins implement them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class JudgeRequest:
    """Asks for the score of one text."""

    candidate: str
    """The text to score; it is untrusted."""
    context: str = ""
    """The text before the candidate."""
    suffix: str = ""
    """The text after the candidate (fill-in)."""
    reference: str | None = None
    """The reference answer, if there is one."""
    rubric: str = ""
    """The criteria by which to score."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """Holds a judge's score of one text, or why there is none."""

    score: float
    """The score, from 0 to 1; meaningless if there is an `error`."""
    explanation: str = ""
    """The judge's reason for the score."""
    error: str | None = None
    """Why the judge gave no score; None if it gave one.

    A text that is poor, empty or hostile is no reason: it gets a low score.
    """
    detail: Mapping[str, Any] = field(default_factory=dict)
    """Further data about the judgement."""


class Judge(Protocol):
    """Scores texts."""

    async def judge(self, requests: Sequence[JudgeRequest]) -> Sequence[Judgement]:
        """Return one judgement per request, in order.

        Only the candidate is always given. `grpo env check` first tries whether a judge works by a
        request with all four texts; a judge that has no score for it counts as unavailable.
        """
        ...

    def fingerprint(self) -> str:
        """Return text that identifies model, revision and settings; it is recorded with the run."""
        ...

    async def close(self) -> None:
        """Release what the judge has opened."""
        ...
