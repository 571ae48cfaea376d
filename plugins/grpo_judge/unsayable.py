"""Requests that no model can be asked, whatever it is."""

from __future__ import annotations

from dataclasses import asdict

from grpo_core import Judgement, JudgeRequest
from grpo_core.extract import is_text


def unsayable(request: JudgeRequest) -> Judgement | None:
    """An error where a text cannot be encoded, as one with half of a surrogate pair; None where all can. Tokenizers would raise for every
    text that they are given along with it."""
    for name, text in asdict(request).items():
        if not is_text(text or ""):
            return Judgement(0.0, error=f"the request's {name} cannot be encoded: it holds half of a surrogate pair")
    return None
