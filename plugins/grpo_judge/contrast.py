"""Calibrates scores on each gap: 0 is the score of an empty fill, 1 that of the reference.

Each fill is also compared with its own words in random order, so that words that fit anywhere earn
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from grpo_core import Judgement, JudgeRequest
from grpo_core.guards import shuffled

Place = tuple[str, str, str]
"""Context, fill and suffix."""
NO_SCORE = (
    "the model can give this text no score: it has no tokens, too many, unknown ones, or overflows"
)


def places(request: JudgeRequest) -> list[Place]:
    """Return the places that have to be scored to calibrate a request."""
    fills = (
        fill
        for text in (request.candidate, request.reference or "")
        for fill in (text, shuffled(text), "")
    )
    return [(request.context, fill, request.suffix) for fill in fills]


def calibrated(
    request: JudgeRequest, scores: Mapping[Place, float], *, least: float, unit: str
) -> Judgement:
    """Return the candidate's score on a scale from an empty fill (0) to the reference (1).

    Args:
        request: A candidate and a reference, in their context.
        scores: The scores of all `places` of the request; a value that is not finite means that
            there is no score.
        least: By how much the reference has to be better than an empty fill; with less, the gap
            cannot be judged.
        unit: Unit of the scores, for messages.
    """

    def contrast(fill: str) -> float:
        fills = (fill, "", shuffled(fill))
        present, *absent = (scores[request.context, text, request.suffix] for text in fills)
        if not all(map(math.isfinite, (present, *absent))):
            return math.nan
        # A fill of one letter has no other order.
        return present - max(absent if shuffled(fill) != fill else absent[:1])

    best, reached = contrast(request.reference or ""), contrast(request.candidate)
    fault = None
    if not math.isfinite(best):
        fault = "the model gives the reference or an empty fill no score"
    elif best < least:
        fault = f"the reference is no better than an empty fill ({best:.4f} {unit})"
    if fault is not None:
        return Judgement(0.0, error=f"{fault}: nothing can be told here")
    if not math.isfinite(reached):
        return Judgement(0.0, NO_SCORE)
    value = reached / best
    detail = {"contrast": reached, "reference": best, "raw": value}
    return Judgement(min(1.0, max(0.0, value)), detail=detail)


def calibrated_all(
    requests: Sequence[JudgeRequest],
    score: Callable[[list[Place]], list[float]],
    *,
    least: float,
    unit: str,
    judge: str,
) -> list[Judgement]:
    """Return the calibrated judgements of all requests; one without a reference is an error.

    Args:
        requests: The requests.
        score: Returns the scores of places; each place is scored once.
        least: See `calibrated`.
        unit: See `calibrated`.
        judge: The judge that needs references, for the message.
    """
    asked = dict.fromkeys(
        place for request in requests if request.reference for place in places(request)
    )
    scores = dict(zip(asked, score(list(asked)), strict=True))
    error = f"the judge {judge} needs a reference to calibrate on; the request has none"
    return [
        calibrated(request, scores, least=least, unit=unit)
        if request.reference
        else Judgement(0.0, error=error)
        for request in requests
    ]
