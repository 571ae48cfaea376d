"""For the sampler: caches that several sequences continue, line by line, and in which what they share is computed once.

A line is what has been said so far; completions that have said the same share one. `Packed` also keeps what lines share once, as nodes
of a tree under a mask (see `tree`), so nothing is copied when they part. Every line then looks at all nodes, so when most nodes belong
to others, `unpacked` gives each line a cache of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from grpo_core.train.kv import growing_cache, joined, keeps_everything, trim
from grpo_core.train.tree import additive, common_length, plant, size

MOST_NODES = 4
"""A line looks at no more than this many times the nodes that it has itself; beyond, each line gets its own cache."""

LIVING = 7 / 8
"""Lines that have ended are computed on with the others until no more than this share is left: leaving one out copies all the others."""


def worth_packing(prompts: Sequence[Sequence[int]]) -> bool:
    return size(prompts, ()) <= MOST_NODES * max(map(len, prompts))


class Lines(Protocol):
    """logits_KV: of the last token of each of K lines."""

    logits_KV: Tensor

    def extend(self, model: Any, parents: Sequence[int], tokens: Sequence[int]) -> Lines:
        """New lines: each continues the line `parents[k]` with the token `tokens[k]`. The old ones can no longer be used."""
        ...

    def separate(self) -> Unpacked:
        """The same lines with a cache each."""
        ...


@dataclass(slots=True)
class Packed:
    """One tree of N nodes for K lines. above_KN: True where a node belongs to the line; dtype: what the model computes in."""

    cache: Any
    logits_KV: Tensor
    above_KN: Tensor
    dtype: torch.dtype

    @classmethod
    def prefill(cls, model: Any, prompts: Sequence[Sequence[int]], *, dtype: torch.dtype, device: torch.device) -> Packed:
        """One line for each of `prompts` (distinct, none empty)."""
        cache = growing_cache(model)
        tree = plant(prompts, [(0,)] * len(prompts), device=device)  # the token that will follow is no node
        logits_KV = tree.through(model, dtype, cache=cache)
        last_K = tree.predictors_K[tree.place_M]
        return cls(cache, logits_KV[tree.place_M], tree.mask_B1NN[0, 0, last_K], dtype)

    def extend(self, model: Any, parents: Sequence[int], tokens: Sequence[int]) -> Lines:
        device = self.above_KN.device
        own_KK = torch.eye(len(tokens), dtype=torch.bool, device=device)
        self.above_KN = torch.cat([self.above_KN[torch.tensor(parents, device=device)], own_KK], dim=1)
        length_K = self.above_KN.sum(dim=1)
        out = model(
            input_ids=torch.tensor([list(tokens)], device=device),
            position_ids=(length_K - 1).unsqueeze(0),
            attention_mask=additive(self.above_KN[None, None], self.dtype),
            past_key_values=self.cache,
            use_cache=True,
        )
        self.logits_KV = out.logits[0]
        return self if self.above_KN.shape[1] <= MOST_NODES * int(length_K.max()) else self.separate()

    def separate(self) -> Unpacked:
        length_K = self.above_KN.sum(dim=1)
        width = int(length_K.max())
        # A node comes after its ancestors, so the nodes of a line in rising order are its tokens; padding may point at any node.
        order_KW = self.above_KN.to(torch.int8).sort(dim=1, stable=True).indices[:, -width:]
        mask_KW = torch.arange(width, device=length_K.device) >= width - length_K.unsqueeze(1)
        for layer in self.cache.layers:
            layer.keys = layer.keys[0][:, order_KW].transpose(0, 1)
            layer.values = layer.values[0][:, order_KW].transpose(0, 1)
        return Unpacked(self.cache, self.logits_KV, mask_KW.long(), length_K, list(range(len(length_K))))


@dataclass(slots=True)
class Unpacked:
    """A cache for each of K lines, padded on the left. mask_KS: 1 for real tokens; length_K: how many those are; living: which of them
    have not ended, in the order in which they are known outside."""

    cache: Any
    logits_KV: Tensor
    mask_KS: Tensor
    length_K: Tensor
    living: list[int]

    @classmethod
    def prefill(cls, model: Any, prompts: Sequence[Sequence[int]], *, pad_id: int, device: torch.device) -> Unpacked:
        """One line for each of `prompts` (distinct, none empty), for models without tree masks and prompts unlike one another."""
        start = common_length(prompts)
        cache, shared_mask = growing_cache(model), torch.ones(len(prompts), start, dtype=torch.long, device=device)
        if start:
            shared = torch.tensor([list(prompts[0][:start])], device=device)
            model(input_ids=shared, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache.batch_select_indices(torch.zeros(len(prompts), dtype=torch.long, device=device))
        rest = [list(prompt[start:]) for prompt in prompts]
        width = max(map(len, rest))
        tokens_KS = torch.tensor([[pad_id] * (width - len(r)) + r for r in rest], device=device)
        mask_KS = torch.tensor([[0] * (width - len(r)) + [1] * len(r) for r in rest], device=device)
        positions_KS = start + (mask_KS.cumsum(dim=1) - 1).clamp(min=0)
        mask_KS = torch.cat([shared_mask, mask_KS], dim=1)
        out = model(
            input_ids=tokens_KS,
            attention_mask=mask_KS,
            position_ids=positions_KS,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return cls(cache, out.logits[:, -1], mask_KS, mask_KS.sum(dim=1), list(range(len(prompts))))

    def extend(self, model: Any, parents: Sequence[int], tokens: Sequence[int]) -> Lines:
        self._choose([self.living[parent] for parent in parents])
        device, living = self.length_K.device, torch.tensor(self.living, device=self.length_K.device)
        tokens_K1 = torch.zeros(len(self.length_K), 1, dtype=torch.long, device=device)  # any token goes on where a line has ended
        tokens_K1[living, 0] = torch.tensor(tokens, device=device)
        self.mask_KS = torch.cat([self.mask_KS, torch.ones_like(tokens_K1)], dim=1)
        out = model(
            input_ids=tokens_K1,
            attention_mask=self.mask_KS,
            position_ids=self.length_K.unsqueeze(1),
            past_key_values=self.cache,
            use_cache=True,
        )
        self.logits_KV, self.length_K = out.logits[living, -1], self.length_K + 1
        return self

    def separate(self) -> Unpacked:
        return self

    @property
    def joinable(self) -> bool:
        return keeps_everything(self.cache)

    def join(self, more: Unpacked) -> None:
        """Take in other lines, behind those that are there."""
        self._choose(self.living, least=1.0)
        more._choose(more.living, least=1.0)
        count, width = len(self.length_K), max(self.mask_KS.shape[1], more.mask_KS.shape[1])
        joined(self.cache, more.cache)
        masks = [torch.nn.functional.pad(lines.mask_KS, (width - lines.mask_KS.shape[1], 0)) for lines in (self, more)]
        self.mask_KS, self.length_K = torch.cat(masks), torch.cat([self.length_K, more.length_K])
        self.logits_KV = torch.cat([self.logits_KV, more.logits_KV])
        self.living = [*self.living, *(count + row for row in more.living)]
        if empty := int(self.mask_KS.any(dim=0).int().argmax()):  # columns of long lines that have ended
            trim(self.cache, empty)
            self.mask_KS = self.mask_KS[:, empty:]

    def _choose(self, rows: list[int], *, least: float = LIVING) -> None:
        """Go on with `rows` of the cache: as they are, if none is wanted twice and few others would be computed with them."""
        count = len(self.length_K)
        if len(set(rows)) == len(rows) and len(rows) >= least * count:
            self.living = rows
            return
        index = torch.tensor(rows, device=self.length_K.device)
        self.cache.batch_select_indices(index)
        self.mask_KS, self.length_K = self.mask_KS[index], self.length_K[index]
        self.living = list(range(len(rows)))
