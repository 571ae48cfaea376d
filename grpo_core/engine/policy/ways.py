"""Name the ways to compute log-probs and completions, and what a check of them needs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

import torch
from torch import Tensor

from grpo_core.engine.compute.masks import Masking
from grpo_core.engine.compute.tuning import Tuning


class Training(Enum):
    """List the ways to compute log-probs for the update, the fastest first."""

    TREES = "shared tokens are computed once"
    PADDED = "each completion is computed with its own copy of the prompt"
    ALONE = "each completion is computed by itself"


class DecodingWay(Enum):
    """List the ways to decode completions, the fastest first."""

    TREES = "shared tokens are computed once"
    PADDED = "each completion is decoded with its own copy of the prompt"
    EQUAL = "only prompts of equal length are decoded together"
    UNCACHED = "only prompts of equal length are decoded together, without a cache"


@dataclass(frozen=True, slots=True)
class Text:
    """Hold a prompt and a completion for the check."""

    prompt: tuple[int, ...]
    completion: tuple[int, ...]


class ContinuedLines(Protocol):
    """Continue sequences (see `prefix.PrefixLines`, `recorded.RecordedLines` and `rows.Rows`)."""

    logits_KV: Tensor
    joinable: bool
    merges_equal: bool

    def extend(self, model: Any, parents: Sequence[int], tokens: Sequence[int]) -> None:
        """Replace the sequences by new ones."""

    def join(self, more: Any) -> None:
        """Append other sequences of the same class."""


class CheckedPolicy(Protocol):
    """Describe the policy that the check tries, and whose ways it sets."""

    model: Any
    training: Training
    sampling: DecodingWay
    masking: Masking | None
    logits_bytes: int
    device: torch.device
    tuning: Tuning

    @property
    def compute_dtype(self) -> torch.dtype:
        """Return the type of the forward pass."""

    @property
    def fills(self) -> bool:
        """Return True if the policy fills gaps instead of continuing a text."""

    def exactly(self) -> AbstractContextManager[bool]:
        """Compute in float32, if possible; enter with whether it is."""

    def adopt_attention(self, adopts: bool) -> None:
        """Use the project's attention, or that of transformers."""

    def check_texts(self) -> list[Text]:
        """Return the texts to compare."""

    def plain_logits(self, text: Text) -> Tensor:
        """Return the logits (T, V) of the completion by a forward pass of this text alone."""

    def text_logprobs(self, texts: Sequence[Text], together: int = 1) -> list[Tensor]:
        """Return the log-probs (T,) of each completion, computed in the present way.

        All texts are computed in one pass, with `together` of them in each tree.
        """

    def open_lines(self, prompts: Sequence[tuple[int, ...]]) -> ContinuedLines:
        """Return a line for each prompt, to be decoded in the present way."""
