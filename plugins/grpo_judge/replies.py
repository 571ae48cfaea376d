"""Keeps what judges reply with the verdict for which they were asked."""

from __future__ import annotations

from collections.abc import Sequence

from grpo_core import Judgement, JudgeRequest, current_call

_MOST_CHARS = 1000
"""The most characters of one reply."""
_CANDIDATE_CHARS = 40
"""How much of a text is quoted where several texts were judged together."""


def note_replies(
    model: str, requests: Sequence[JudgeRequest], judgements: Sequence[Judgement]
) -> None:
    """Keep each reply with the verdict that is made: the score and its reason, or the error."""
    for request, judgement in zip(requests, judgements, strict=True):
        about = f" on {request.candidate[:_CANDIDATE_CHARS]!r}" if len(requests) > 1 else ""
        reply = (
            " ".join(filter(None, (f"{judgement.score:.3g}", judgement.explanation)))
            if judgement.error is None
            else f"error: {judgement.error}"
        )
        current_call().note(f"the judge {model}{about}: {reply}"[:_MOST_CHARS])
