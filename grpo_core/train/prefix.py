"""For the sampler: the cache of what several sequences share is computed once, for the common start of all prompts, then each prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

MIN_COMMON = 8
"""A shorter common start is not worth a forward pass of its own."""


@dataclass(slots=True)
class Prefix:
    """A cache of K lines. cache: its keys and values; logits_KV: of each line's last token at first; mask_KS: 1 for real tokens; length_K."""

    cache: Any
    logits_KV: Tensor
    mask_KS: Tensor
    length_K: Tensor

    def select(self, lines: Sequence[int]) -> None:
        """Keep or repeat `lines`, in that order."""
        if list(lines) == list(range(len(self.length_K))):
            return
        index = torch.tensor(lines, device=self.length_K.device)
        self.cache.batch_select_indices(index)
        self.mask_KS, self.length_K = self.mask_KS[index], self.length_K[index]

    def extend(self, model: Any, tokens_K1: Tensor) -> Tensor:
        """Logits (K, V) after one more token on each line."""
        self.mask_KS = torch.cat([self.mask_KS, torch.ones_like(tokens_K1)], dim=1)
        out = model(
            input_ids=tokens_K1,
            attention_mask=self.mask_KS,
            position_ids=self.length_K.unsqueeze(1),
            past_key_values=self.cache,
            use_cache=True,
        )
        self.length_K = self.length_K + 1
        logits_KV: Tensor = out.logits[:, -1]
        return logits_KV


def prefill(model: Any, prompts: Sequence[Sequence[int]], *, pad_id: int, device: torch.device) -> Prefix:
    """The cache of `prompts` (none empty), padded on the left so that what continues them follows the last token directly."""
    start = common_length(prompts)
    cache, shared_mask = None, torch.ones(len(prompts), start, dtype=torch.long, device=device)
    if start:
        shared = torch.tensor([list(prompts[0][:start])], device=device)
        cache = model(input_ids=shared, use_cache=True, logits_to_keep=1).past_key_values
        cache.batch_select_indices(torch.zeros(len(prompts), dtype=torch.long, device=device))
    rest = [list(prompt[start:]) for prompt in prompts]
    width = max(map(len, rest))
    tokens_PS = torch.tensor([[pad_id] * (width - len(r)) + r for r in rest], device=device)
    mask_PS = torch.tensor([[0] * (width - len(r)) + [1] * len(r) for r in rest], device=device)
    positions_PS = start + (mask_PS.cumsum(dim=1) - 1).clamp(min=0)
    mask_PS = torch.cat([shared_mask, mask_PS], dim=1)
    out = model(
        input_ids=tokens_PS,
        attention_mask=mask_PS,
        position_ids=positions_PS,
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    )
    length_P = torch.tensor([len(prompt) for prompt in prompts], device=device)
    return Prefix(out.past_key_values, out.logits[:, -1], mask_PS, length_P)


def common_length(prompts: Sequence[Sequence[int]]) -> int:
    """How many tokens all prompts share at the start, leaving at least one token to each; 0 if too few to pay."""
    first, last = min(prompts, key=list), max(prompts, key=list)  # the lexicographic extremes differ earliest
    limit = min(map(len, prompts)) - 1
    common = next((i for i in range(min(limit, len(first), len(last))) if first[i] != last[i]), limit)
    return common if len(prompts) > 1 and common >= MIN_COMMON else 0
