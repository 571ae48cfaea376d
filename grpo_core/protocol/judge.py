"""What an environment may ask of a judge model: scores for texts in their context. Types only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class JudgeRequest:
    """candidate: the untrusted text to score; context: what stands before it; suffix: what stands after it (fill-in)."""

    candidate: str
    context: str = ""
    suffix: str = ""
    reference: str | None = None
    rubric: str = ""


@dataclass(frozen=True, slots=True)
class Judgement:
    """score: in 0..1; error: why no score could be had (then the score means nothing)."""

    score: float
    explanation: str = ""
    error: str | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)


class Judge(Protocol):
    """Scores texts. fingerprint: model, revision and settings, recorded with the run."""

    async def judge(self, requests: Sequence[JudgeRequest]) -> Sequence[Judgement]:
        """One judgement per request, in order."""
        ...

    def fingerprint(self) -> str: ...

    async def close(self) -> None: ...
