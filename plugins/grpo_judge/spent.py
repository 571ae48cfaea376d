"""Counts the cost of calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from grpo_judge.answers import ModelAnswer
from grpo_judge.llm_config import LLMConfig

COSTS = ("tokens_in", "tokens_out", "cost")


@dataclass(slots=True)
class Spent:
    """The cost of calls, for one judgement or over the judge's whole life."""

    calls: int = 0
    """Number of answered calls."""
    tokens_in: int = 0
    """Tokens of the prompts."""
    tokens_out: int = 0
    """Tokens of the answers."""
    cost: float = 0.0
    """Cost in the unit of the prices."""
    blamed: int = 0
    """Number of grades of 0 for texts that made calls fail."""

    def add(self, answer: ModelAnswer, config: LLMConfig) -> None:
        """Add the cost of one answer."""
        price = answer.tokens_in * config.price_in + answer.tokens_out * config.price_out
        self.calls += 1
        self.tokens_in += answer.tokens_in
        self.tokens_out += answer.tokens_out
        self.cost += price / 1e6

    def detail(self) -> dict[str, Any]:
        """Return the cost in the form of a judgement's detail."""
        return {name: getattr(self, name) for name in COSTS}
