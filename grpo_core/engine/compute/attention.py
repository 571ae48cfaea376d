"""Compute the attention of packed trees (see `tree`), registered with transformers.

Only columns that some row may see are multiplied, and keys and values that several heads share are
not repeated. Every other case is left to the attention of transformers through PyTorch.
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
"""Name under which the attention is registered."""

ROWS = 256
"""Rows of a block. Smaller blocks compute fewer masked pairs but multiply more slowly (4 trees of
1,024 nodes, 2 cores: 64 to 512 rows differ by 20 %)."""

FEW_ROWS = 64
"""Up to this many queries, those of the heads that share keys are stacked, with a mask for each."""


@dataclass(frozen=True, slots=True)
class AttentionBlock:
    """Select rows (queries) and the columns (keys) that at least one of them may see."""

    rows: slice
    columns: tuple[slice, ...]


WHOLE = (AttentionBlock(slice(None), (slice(None),)),)
"""A single block in which every row may see every column."""


def blocks(ends: Sequence[int], rows: int | None = None) -> tuple[AttentionBlock, ...]:
    """Return the blocks of a tree whose nodes are in depth-first order.

    Args:
        ends: one past the last descendant of each node; the largest of these where several trees
            stand side by side.
        rows: rows of a block; `ROWS` if None.
    """
    tree_blocks, rows = [], rows or ROWS
    for start in range(0, len(ends), rows):
        stop = min(start + rows, len(ends))
        visible = [j for j in range(stop) if ends[j] > start or j >= start]
        gaps = [i for i in range(1, len(visible)) if visible[i] != visible[i - 1] + 1]
        columns = (
            slice(visible[a], visible[b - 1] + 1)
            for a, b in zip([0, *gaps], [*gaps, len(visible)], strict=True)
        )
        tree_blocks.append(AttentionBlock(slice(start, stop), tuple(columns)))
    return tuple(tree_blocks)


def adopt(model: Any, adopts: bool = True) -> None:
    """Replace PyTorch's attention in `model` by this one; without `adopts`, put it back."""
    base = model.get_base_model() if hasattr(model, "peft_config") else model
    own, other = ("sdpa", NAME) if adopts else (NAME, "sdpa")
    if base.config._attn_implementation == own and base._can_set_attn_implementation():
        base.set_attn_implementation(other)


def arguments(model: Any, tree_blocks: tuple[AttentionBlock, ...]) -> dict[str, Any]:
    """Return the keyword arguments by which a forward pass of `model` uses the given blocks."""
    return {"tree_blocks": tree_blocks} if model.config._attn_implementation == NAME else {}


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    tree_blocks: tuple[AttentionBlock, ...] = (),
    **more: Any,
) -> Any:
    """Compute attention in the signature that transformers expects.

    Args:
        module: the attention layer.
        query: (B, heads, N, D).
        key: (B, shared heads, S, D).
        value: (B, shared heads, S, D).
        attention_mask: additive, (B, 1, N, S).
        scaling: factor of the scores.
        dropout: dropout probability.
        tree_blocks: blocks to compute; without them transformers' attention is used.
        more: arguments that transformers passes on.

    Returns:
        The output (B, N, heads, D), and None in place of attention weights.
    """
    groups = query.shape[1] // key.shape[1]
    # For a single query, transformers copies the keys for each head, which a GPU waits for.
    plain = query.shape[2] == 1 and (groups == 1 or query.device.type == "cpu")
    if plain or not tree_blocks or attention_mask is None or more.get("position_bias") is not None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **more
        )
    if groups > 1 and query.shape[2] <= FEW_ROWS:
        return _attend_stacked(query, key, value, attention_mask, groups, scaling, dropout), None
    # Elsewhere a mask with shared keys is slower than repeated keys.
    native = query.device.type == "cpu"
    if groups > 1 and not native:
        key, value = repeat_kv(key, groups), repeat_kv(value, groups)
    parts = [
        scaled_dot_product_attention(
            query[:, :, block.rows],
            _select_columns(key, block.columns, 2),
            _select_columns(value, block.columns, 2),
            attn_mask=_select_columns(attention_mask[:, :, block.rows], block.columns, 3),
            dropout_p=dropout,
            scale=scaling,
            enable_gqa=groups > 1 and native,
        )
        for block in tree_blocks
    ]
    return torch.cat(parts, dim=2).transpose(1, 2).contiguous(), None


def _attend_stacked(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    groups: int,
    scaling: float | None,
    dropout: float,
) -> Tensor:
    """Compute attention with the queries of the heads that share keys stacked along the rows."""
    B, heads, N, D = query.shape
    mask = mask.expand(B, groups, N, mask.shape[-1]).reshape(B, 1, groups * N, mask.shape[-1])
    query = query.reshape(B, heads // groups, groups * N, D)
    return (
        scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout, scale=scaling
        )
        .reshape(B, heads, N, -1)
        .transpose(1, 2)
        .contiguous()
    )


def _select_columns(states: Tensor, columns: tuple[slice, ...], dim: int) -> Tensor:
    """Return the given column slices of `states` along `dim`, joined."""
    parts = [states[(slice(None),) * dim + (column,)] for column in columns]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=dim)


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, sdpa_mask)
