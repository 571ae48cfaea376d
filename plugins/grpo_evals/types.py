"""Define the settings and results of evaluations at an endpoint; they need no extra."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from grpo_core.api.figures import Summary
from grpo_core.api.protocol import DEFAULT_TAGS, Tags
from grpo_core.protocol.sampler import SamplingParams

Refusal = Literal["context", "filter"]
"""Why a server gives no whole answer: the dialogue does not fit, or a filter forbids it."""
NoText = Literal["thoughts", "thoughts_cut", "cut", "empty", "calls", "refusal"]
"""Why the content of an answer is empty.

"thoughts": the server put everything into a field of thoughts. "thoughts_cut": the thoughts took
all tokens. "cut": it ended at its budget, and nobody knows where its tokens went. "empty": the
model ended it by itself. "calls": it calls tools, and the environment has none. "refusal": the
model refuses, in a field of its own, whose text is judged.
"""


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Say which model is asked, and how."""

    endpoint: str
    """The address of the endpoint, such as http://127.0.0.1:8000/v1."""
    name: str
    """The model's name there."""
    params: SamplingParams = field(default_factory=SamplingParams)
    """How tokens are drawn; top-p, top-k and min-p are sent only where they are set."""
    request: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of each request; None leaves a field out."""
    thought_tags: Tags | None = DEFAULT_TAGS
    """The texts that open and close thoughts in an answer; None: nothing is a thought."""


@dataclass(frozen=True, slots=True)
class EvaluationSettings:
    """Say how many attempts are made, and how the endpoint is asked."""

    model: ModelSettings
    """The model."""
    key: str
    """The API key."""
    tasks: int
    """Most held-out tasks per environment and level."""
    samples: int
    """Attempts at each task."""
    levels: Sequence[float] = ()
    """The levels; if empty, each environment has its own."""
    concurrency: int = 16
    """Most requests in flight."""
    per_minute: float = 0.0
    """Most requests that begin in a minute, evenly spaced; 0: no limit."""
    timeout_seconds: float = 300.0
    """How long one request may take, from the first byte sent to the last received."""
    retries: int = 6
    """How often a request is repeated that the server does not answer."""
    price_in: float = 0.0
    """Price of a million tokens that are read."""
    price_out: float = 0.0
    """Price of a million tokens that are written."""
    cache: Path | None = None
    """File of the answers of earlier requests; None for none."""


@dataclass(frozen=True, slots=True)
class EndpointUsage:
    """Count what answers cost."""

    requests: int = 0
    """Number of answers of the endpoint."""
    cached: int = 0
    """Number of answers from the cache of completions, which cost nothing."""
    retries: int = 0
    """Number of requests that failed and were repeated."""
    prompt_tokens: int = 0
    """Tokens that were read, as the endpoint counts them."""
    completion_tokens: int = 0
    """Tokens that were written, as the endpoint counts them."""

    def __add__(self, other: EndpointUsage) -> EndpointUsage:
        mine, its = asdict(self), asdict(other)
        return EndpointUsage(**{name: mine[name] + its[name] for name in mine})

    def cost(self, settings: EvaluationSettings) -> float:
        """Return the cost at the prices of the settings, in their unit."""
        price_in, price_out = settings.price_in, settings.price_out
        return (self.prompt_tokens * price_in + self.completion_tokens * price_out) / 1e6


@dataclass(frozen=True, slots=True)
class Progress:
    """Say how far an evaluation has come."""

    done: int
    """Attempts that have ended, those of earlier calls included."""
    total: int
    """All attempts."""
    failed: int
    """Attempts that could not be made or judged."""
    usage: EndpointUsage
    """What the attempts cost."""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Holds the results of an evaluation."""

    summaries: Sequence[Summary]
    """The statistics of each environment at each level."""
    refused: Sequence[Mapping[Refusal, int]]
    """How many of the attempts in each summary the server refused to answer, by the reason."""
    no_text: Sequence[Mapping[NoText, int]]
    """How many of the answers in each summary have no text, by the reason."""
    remarks: Sequence[str]
    """What is unusual about the answers, and what to do about it."""
    errors: Mapping[str, int]
    """Why attempts could not be made or judged, and how many; the most common reasons first."""
    usage: EndpointUsage
    """What all attempts cost, those of earlier calls included."""
    is_complete: bool
    """Whether all attempts were made."""

    def to_json(self, settings: EvaluationSettings) -> dict[str, Any]:
        """Return the results as JSON data."""
        results = [
            {**summary.to_json(), "refused": dict(refused), "no_text": dict(no_text)}
            for summary, refused, no_text in zip(
                self.summaries, self.refused, self.no_text, strict=True
            )
        ]
        return {
            "model": settings.model.name,
            "endpoint": settings.model.endpoint,
            "complete": self.is_complete,
            "usage": {**asdict(self.usage), "cost": self.usage.cost(settings)},
            "errors": dict(self.errors),
            "remarks": list(self.remarks),
            "results": results,
        }
