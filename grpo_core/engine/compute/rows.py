"""Continue several sequences side by side, each with a cache of its own, by plain forward passes.

This is the slow way to sample, for models to which trees (see `prefix`) cannot be given: nothing is
shared between sequences, and the mask, where one is needed, only marks padding before the prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from grpo_core.engine.compute.kv import (
    accepts,
    cache_argument,
    drop_columns,
    join_caches,
    keeps_everything,
    open_cache,
)
from grpo_core.engine.compute.upload import upload


class Rows:
    """Hold K sequences and the logits of their next tokens.

    Args:
        model: the model that computes.
        prompts: what the sequences start with. Shorter ones are padded on the left; for a model
            that cannot be padded all have to be of equal length.
        pad_id: token used as padding.
        device: where the tensors are made.
        cached: keep keys, values and states; otherwise every step computes whole sequences.
        padded: the model can be padded.
    """

    merges_equal = True
    """Completions that are equal so far may share a sequence."""
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
        padded: bool,
    ) -> None:
        self._tokens_KS, self._real_KS = pad_left(prompts, pad_id, device)
        self._lengths = list(map(len, prompts))  # tokens of each sequence
        self._cache = open_cache(model) if cached else None
        # Without positions as an argument, a model would count the padding that joining adds.
        places = padded and accepts(model, "position_ids")
        self.joinable = places and self._cache is not None and keeps_everything(self._cache)
        """Other sequences can be added by `join`."""
        self._compute(model, self._tokens_KS)

    def extend(self, model: Any, parents: Sequence[int], tokens: Sequence[int]) -> None:
        """Replace the sequences by new ones, by one forward pass.

        Args:
            model: the model that computes.
            parents: the sequence that each new one continues; the others are dropped.
            tokens: the token that each new one adds.
        """
        device, count = self._tokens_KS.device, len(self._tokens_KS)
        parent_K, tokens_K = upload([parents, tokens], device)
        tokens_K1 = tokens_K[:, None]
        if list(parents) != list(range(count)):
            self._lengths = [self._lengths[parent] for parent in parents]
            self._tokens_KS, self._real_KS = self._tokens_KS[parent_K], self._real_KS[parent_K]
            for layer in self._cache.layers if self._cache is not None else ():
                layer.reorder_cache(parent_K)  # unlike other ways to select, all layers have this
        self._tokens_KS = torch.cat([self._tokens_KS, tokens_K1], dim=1)
        self._real_KS = torch.nn.functional.pad(self._real_KS, (0, 1), value=1)
        self._lengths = [length + 1 for length in self._lengths]
        self._compute(model, self._tokens_KS if self._cache is None else tokens_K1)

    def join(self, more: Rows) -> None:
        """Append other sequences behind the present ones."""
        assert self._cache is not None
        assert more._cache is not None
        join_caches(self._cache, more._cache)
        width = max(rows._tokens_KS.shape[1] for rows in (self, more))
        for name in ("_tokens_KS", "_real_KS"):
            both = [getattr(rows, name) for rows in (self, more)]
            setattr(self, name, torch.cat([_widen(values_KS, width) for values_KS in both]))
        self._lengths += more._lengths
        self.logits_KV = torch.cat([self.logits_KV, more.logits_KV])
        if empty := int(self._real_KS.any(dim=0).int().argmax()):  # long ones have ended
            drop_columns(self._cache, empty)
            self._tokens_KS, self._real_KS = self._tokens_KS[:, empty:], self._real_KS[:, empty:]

    def _compute(self, model: Any, tokens_KT: Tensor) -> None:
        """Compute the logits after `tokens_KT`, the last T tokens of the sequences."""
        cache = {} if self._cache is None else cache_argument(model, self._cache)
        logits_KTV = forward_padded(
            model,
            tokens_KT,
            self._real_KS,
            padded=min(self._lengths) < self._real_KS.shape[1],
            keep=1,
            use_cache=self._cache is not None,
            **cache,
        )
        self.logits_KV = logits_KTV[:, -1]


def pad_left(
    sequences: Sequence[Sequence[int]], pad_id: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return sequences (K, S) padded on the left, and 1 for their tokens and 0 for padding."""
    width = max(map(len, sequences))
    tokens = [[pad_id] * (width - len(sequence)) + list(sequence) for sequence in sequences]
    real = [[0] * (width - len(sequence)) + [1] * len(sequence) for sequence in sequences]
    tokens_KS, real_KS = upload([tokens, real], device)
    return tokens_KS, real_KS


def forward_padded(
    model: Any,
    tokens_KT: Tensor,
    real_KS: Tensor,
    *,
    padded: bool,
    keep: int | None = None,
    **more: Any,
) -> Tensor:
    """Return the logits (K, keep or T, V) of the last tokens of padded sequences.

    Args:
        model: the model.
        tokens_KT: the tokens that are computed, the last T of S.
        real_KS: 1 for tokens and 0 for padding, which stands before or behind the tokens of a
            sequence.
        padded: whether there is padding; without any the model gets no mask at all.
        keep: number of tokens whose logits are needed, all if None; older models return all.
        more: further arguments of the forward pass.
    """
    if padded:
        more["attention_mask"] = real_KS
        if accepts(model, "position_ids"):
            positions_KS = (real_KS.cumsum(dim=1) - 1).clamp(min=0)
            more["position_ids"] = positions_KS[:, -tokens_KT.shape[1] :]
    if keep is not None and accepts(model, "logits_to_keep"):
        more["logits_to_keep"] = keep
    logits: Tensor = model(input_ids=tokens_KT, **more).logits
    return logits


def _widen(values_KS: Tensor, width: int) -> Tensor:
    """Return values padded with 0 on the left."""
    return torch.nn.functional.pad(values_KS, (width - values_KS.shape[1], 0))
