"""Attention of packed trees (see `tree`), registered with transformers: only what some row may see is multiplied, and keys and values that
several heads share are not repeated.

Everything else that is asked of it, it leaves to what transformers does through PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "grpo_tree"

ROWS = 256
"""Of a block: smaller ones see less in vain, and multiply more slowly (4 trees of 1,024 nodes, 2 cores: 64 to 512 rows differ by 20 %)."""

FEW_ROWS = 64
"""Up to so many queries, those of the heads that share keys are laid side by side, with a mask for each."""


@dataclass(frozen=True, slots=True)
class Block:
    """Rows (queries), and the columns (keys) that one of them may see."""

    rows: slice
    columns: tuple[slice, ...]


WHOLE = (Block(slice(None), (slice(None),)),)


def blocks(ends: Sequence[int]) -> tuple[Block, ...]:
    """Of nodes, depth first; ends: one past the last descendant of each, the largest where several trees stand side by side."""
    found = []
    for start in range(0, len(ends), ROWS):
        stop = min(start + ROWS, len(ends))
        seen = [j for j in range(stop) if ends[j] > start or j >= start]
        gaps = [i for i in range(1, len(seen)) if seen[i] != seen[i - 1] + 1]
        columns = (
            slice(seen[a], seen[b - 1] + 1)
            for a, b in zip([0, *gaps], [*gaps, len(seen)], strict=True)
        )
        found.append(Block(slice(start, stop), tuple(columns)))
    return tuple(found)


def adopt(model: Any) -> None:
    """Let `model` use this attention where it uses PyTorch's own."""
    base = model.get_base_model() if hasattr(model, "peft_config") else model
    if base.config._attn_implementation == "sdpa" and base._can_set_attn_implementation():
        base.set_attn_implementation(NAME)


def arguments(model: Any, found: tuple[Block, ...]) -> dict[str, Any]:
    """For a forward pass of `model`, to compute with the blocks `found`."""
    return {"tree_blocks": found} if model.config._attn_implementation == NAME else {}


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    tree_blocks: tuple[Block, ...] = (),
    **more: Any,
) -> tuple[Tensor, None]:
    """query (B, heads, N, D), key and value (B, shared heads, S, D), additive mask (B, 1, N, S) -> (B, N, heads, D)."""
    if (
        not tree_blocks
        or attention_mask is None
        or query.shape[2] == 1
        or more.get("position_bias") is not None
    ):
        plain: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **more
        )
        return plain
    groups = query.shape[1] // key.shape[1]
    if groups > 1 and query.shape[2] <= FEW_ROWS:
        return _side_by_side(query, key, value, attention_mask, groups, scaling, dropout), None
    native = (
        query.device.type == "cpu"
    )  # elsewhere a mask and shared keys together are slower than repeated keys
    if groups > 1 and not native:
        key, value = repeat_kv(key, groups), repeat_kv(value, groups)
    parts = [
        scaled_dot_product_attention(
            query[:, :, block.rows],
            _chosen(key, block.columns, 2),
            _chosen(value, block.columns, 2),
            attn_mask=_chosen(attention_mask[:, :, block.rows], block.columns, 3),
            dropout_p=dropout,
            scale=scaling,
            enable_gqa=groups > 1 and native,
        )
        for block in tree_blocks
    ]
    return torch.cat(parts, dim=2).transpose(1, 2).contiguous(), None


def _side_by_side(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    groups: int,
    scaling: float | None,
    dropout: float,
) -> Tensor:
    B, heads, N, D = query.shape
    mask = mask.expand(B, groups, N, mask.shape[-1]).reshape(B, 1, groups * N, mask.shape[-1])
    query = query.reshape(B, heads // groups, groups * N, D)
    found = scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=dropout, scale=scaling
    )
    return found.reshape(B, heads, N, -1).transpose(1, 2).contiguous()


def _chosen(states: Tensor, columns: tuple[slice, ...], dim: int) -> Tensor:
    found = [states[(slice(None),) * dim + (column,)] for column in columns]
    return found[0] if len(found) == 1 else torch.cat(found, dim=dim)


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, sdpa_mask)
