"""Scores that are calibrated on each gap: 0 is an empty fill, 1 the reference. Each is compared with its own words in disorder, too, so
that words that fit anywhere earn nothing."""

from __future__ import annotations

from collections.abc import Mapping

from grpo_core import Judgement, JudgeRequest
from grpo_core.guards import shuffled

Place = tuple[str, str, str]
"""Context, fill and suffix."""


def places(request: JudgeRequest) -> list[Place]:
    """What has to be scored to calibrate a request."""
    fills = (fill for text in (request.candidate, request.reference or "") for fill in (text, shuffled(text), ""))
    return [(request.context, fill, request.suffix) for fill in fills]


def calibrated(request: JudgeRequest, scores: Mapping[Place, float], *, least: float, unit: str) -> Judgement:
    """least: by how much the reference has to be better than no fill; with less, nothing can be told on this gap. unit: of the scores."""

    def contrast(fill: str) -> float:
        present, *absent = (scores[request.context, text, request.suffix] for text in (fill, "", shuffled(fill)))
        # A fill of one letter has no disorder of its own.
        return present - max(absent if shuffled(fill) != fill else absent[:1])

    best = contrast(request.reference or "")
    if best < least:
        return Judgement(0.0, error=f"the reference is no better than an empty fill ({best:.4f} {unit}): nothing can be told here")
    value = contrast(request.candidate) / best
    return Judgement(min(1.0, max(0.0, value)), detail={"contrast": contrast(request.candidate), "reference": best, "raw": value})
