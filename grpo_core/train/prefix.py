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
    """A cache that B sequences continue. cache: its keys and values; logits_BV: of the last token; mask_BS: 1 for real tokens; length_B."""

    cache: Any
    logits_BV: Tensor
    mask_BS: Tensor
    length_B: Tensor

    def select(self, index: Tensor) -> None:
        """Keep or repeat the sequences `index`, in that order."""
        self.cache.batch_select_indices(index)
        self.logits_BV, self.mask_BS, self.length_B = self.logits_BV[index], self.mask_BS[index], self.length_B[index]

    def extend(self, model: Any, tokens_BT: Tensor, real_BT: Tensor) -> Tensor:
        """Logits (B, T, V) of `tokens_BT` after the prefix, which then holds them too. real_BT: 1 where the token is no padding (right)."""
        self.mask_BS = torch.cat([self.mask_BS, real_BT], dim=1)
        positions_BT = self.length_B.unsqueeze(1) + (real_BT.cumsum(dim=1) - 1).clamp(min=0)
        out = model(
            input_ids=tokens_BT,
            attention_mask=self.mask_BS,
            position_ids=positions_BT,
            past_key_values=self.cache,
            use_cache=True,
        )
        self.length_B = self.length_B + real_BT.sum(dim=1)
        logits_BTV: Tensor = out.logits
        return logits_BTV


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
