"""Define the `Sampler` protocol: what continues token prefixes, and what it is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from grpo_core.protocol.types import Finish


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Hold the settings that decide how a completion is drawn."""

    temperature: float = 1.0
    """The logits are divided by this; 0 takes the most likely token."""
    top_p: float = 1.0
    """Draw from the smallest set of tokens that holds this much probability."""
    top_k: int = 0
    """Draw from the k most likely tokens; 0: off."""
    min_p: float = 0.0
    """Draw from tokens at least this fraction as likely as the most likely token; 0: off."""
    stop: tuple[str, ...] = ()
    """A completion ends with the token that completes one of these strings."""


@dataclass(frozen=True, slots=True)
class Request:
    """Ask for a completion of `prefix` of at most len(uniforms) tokens."""

    prefix: tuple[int, ...]
    """Tokens to continue."""
    uniforms: Sequence[float]
    """Numbers (T,) in [0, 1), one to draw each token."""
    params: SamplingParams = SamplingParams()


@dataclass(frozen=True, slots=True)
class Completion:
    """Hold the tokens that a sampler drew for a request."""

    token_ids: tuple[int, ...] = ()
    """Tokens (T,), with the end token."""
    logprobs: tuple[float, ...] = ()
    """Log-probs (T,) under the full distribution at the temperature."""
    finish: Finish = "length"
    """Why the completion ended."""
    kept_mass: float = 1.0
    """Least probability mass that top-p, top-k and min-p kept in any draw; 1.0 without them."""


class Sampler(Protocol):
    """Continue token prefixes.

    A sampler never sees text, so earlier turns are never tokenised again.
    """

    async def generate(self, request: Request) -> Completion:
        """Return a completion of the request; requests that wait together are computed together.

        If the caller is cancelled, the completion is given up.
        """
        ...
