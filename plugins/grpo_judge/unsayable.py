"""Decides requests whose texts cannot be encoded, so that no model can judge them."""

from __future__ import annotations

from dataclasses import asdict

from grpo_core import Judgement, JudgeRequest
from grpo_core.extract import is_text


def unsayable(request: JudgeRequest) -> Judgement | None:
    """Return the judgement of a request with a text that cannot be encoded, or None.

    Half of a surrogate pair cannot be encoded; tokenizers would raise for every text of the same
    batch. In the candidate it is the policy's choice, so the score is the lowest. In any other
    field it is a fault of the environment, hence an error.
    """
    reasons = {
        name: f"the request's {name} cannot be encoded: it holds half of a surrogate pair"
        for name, text in asdict(request).items()
        if not is_text(text or "")
    }
    fault = reasons.pop("candidate", None)
    if reasons:
        return Judgement(0.0, error=next(iter(reasons.values())))
    return None if fault is None else Judgement(0.0, fault)
