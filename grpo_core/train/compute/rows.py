"""Continue several sequences side by side, each with a cache of its own, by plain forward passes.

This is the slow way to sample, for models to which trees (see `prefix`) cannot be given: nothing is
shared between sequences, and the mask, where one is needed, only marks padding before the prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from grpo_core.train.compute.kv import accepts, cache_argument


class Rows:
    """Hold K sequences and the logits of their next tokens.

    Args:
        model: the model that computes.
        prompts: what the sequences start with. Shorter ones are padded on the left; for a model
            that cannot be padded all have to be of equal length.
        pad_id: token used as padding.
        device: where the tensors are made.
        cached: keep keys, values and states; otherwise every step computes whole sequences.
    """

    joinable = False
    """Other sequences cannot be added to these (see `prefix.Lines.joinable`)."""
    logits_KV: Tensor
    """Logits after the last token of each sequence."""

    def __init__(
        self,
        model: Any,
        prompts: Sequence[Sequence[int]],
        *,
        pad_id: int,
        device: torch.device,
        cached: bool,
    ) -> None:
        self._tokens_KS, self._real_KS = pad_left(prompts, pad_id, device)
        self._cache = DynamicCache(config=model.config) if cached else None
        self._compute(model, self._tokens_KS)

    def extend(self, model: Any, parents: Sequence[int], tokens: Sequence[int]) -> None:
        """Replace the sequences by new ones, by one forward pass.

        Args:
            model: the model that computes.
            parents: the sequence that each new one continues; the others are dropped.
            tokens: the token that each new one adds.
        """
        device, count = self._tokens_KS.device, len(self._tokens_KS)
        tokens_K1 = torch.tensor(list(tokens), device=device)[:, None]
        if list(parents) != list(range(count)):
            parent_K = torch.tensor(list(parents), device=device)
            self._tokens_KS, self._real_KS = self._tokens_KS[parent_K], self._real_KS[parent_K]
            for layer in self._cache.layers if self._cache is not None else ():
                layer.reorder_cache(parent_K)  # unlike other ways to select, all layers have this
        self._tokens_KS = torch.cat([self._tokens_KS, tokens_K1], dim=1)
        self._real_KS = torch.nn.functional.pad(self._real_KS, (0, 1), value=1)
        self._compute(model, self._tokens_KS if self._cache is None else tokens_K1)

    def _compute(self, model: Any, tokens_KT: Tensor) -> None:
        """Compute the logits after `tokens_KT`, the last T tokens of the sequences."""
        cache = {} if self._cache is None else cache_argument(model, self._cache)
        logits_KTV = forward_padded(
            model, tokens_KT, self._real_KS, use_cache=self._cache is not None, **cache
        )
        self.logits_KV = logits_KTV[:, -1]


def pad_left(
    sequences: Sequence[Sequence[int]], pad_id: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return sequences (K, S) padded on the left, and 1 for their tokens and 0 for padding."""
    width = max(map(len, sequences))
    tokens = [[pad_id] * (width - len(sequence)) + list(sequence) for sequence in sequences]
    real = [[0] * (width - len(sequence)) + [1] * len(sequence) for sequence in sequences]
    return torch.tensor(tokens, device=device), torch.tensor(real, device=device)


def forward_padded(
    model: Any, tokens_KT: Tensor, real_KS: Tensor, *, keep: int = 1, **more: Any
) -> Tensor:
    """Return the logits (K, keep or T, V) of the last tokens of padded sequences.

    Args:
        model: the model.
        tokens_KT: the tokens that are computed, the last T of S.
        real_KS: 1 for tokens and 0 for padding, which stands before or behind the tokens of a
            sequence. Without any padding the model gets no mask at all.
        keep: number of tokens whose logits are needed; older models return those of all.
        more: further arguments of the forward pass.
    """
    if not bool(real_KS.all()):
        more["attention_mask"] = real_KS
        if accepts(model, "position_ids"):
            positions_KS = (real_KS.cumsum(dim=1) - 1).clamp(min=0)
            more["position_ids"] = positions_KS[:, -tokens_KT.shape[1] :]
    if accepts(model, "logits_to_keep"):
        more["logits_to_keep"] = keep
    logits: Tensor = model(input_ids=tokens_KT, **more).logits
    return logits
