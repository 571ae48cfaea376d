"""Give a model a mask of any shape, also where some of its layers look at a part of the text only.

transformers counts a sliding window in columns of the cache. In a tree (see `tree`) neighbouring
columns may belong to different rows, so here a window is counted in positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grpo_core.engine.compute import attention

MASKED_ATTENTION = (attention.NAME, "sdpa", "eager")
"""Attention implementations that take a mask of any shape."""

Masks = Tensor | dict[str, Tensor]
"""What a forward pass takes as `attention_mask`: one mask, or one for each type of layer."""

WINDOWS = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}
"""Types of layers that see a part of the text, and the setting of the model that holds its size."""


@dataclass(frozen=True, slots=True)
class Masking:
    """Say what each type of layer of a model may see of the tokens before it."""

    layers: tuple[str, ...] = ()
    """Types of layers that get a mask each; none if all layers get the same."""
    single: str = "full_attention"
    """The type of all layers where they get the same mask."""

    def masks(
        self, model: Any, seen_BQN: Tensor, query_BQ: Tensor, key_BN: Tensor, dtype: torch.dtype
    ) -> Masks:
        """Return the masks in the form that is added to the scores of attention, (B, 1, Q, N) each.

        Args:
            model: the model.
            seen_BQN: True where a query attends to a key in a layer that sees everything.
            query_BQ: positions of the queries.
            key_BN: positions of the keys.
            dtype: type of the masks.
        """

        def mask(kind: str) -> Tensor:
            if kind not in WINDOWS:
                return additive(seen_BQN[:, None], dtype)
            size = getattr(model.config.get_text_config(decoder=True), WINDOWS[kind])
            query_BQ1, key_B1N = query_BQ[:, :, None], key_BN[:, None, :]
            near_BQN = (
                key_B1N > query_BQ1 - size
                if kind == "sliding_attention"
                else key_B1N // size == query_BQ1 // size
            )
            return additive((seen_BQN & near_BQN)[:, None], dtype)

        return {kind: mask(kind) for kind in self.layers} or mask(self.single)


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the mask in the form that attention adds to its scores."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(
        ~mask, torch.finfo(dtype).min
    )


def maskings(model: Any) -> list[Masking]:
    """Return the ways in which the model might take masks, the likeliest first.

    No setting states it reliably, so each is tried (see `selfcheck`). None for layers that carry a
    state from token to token.
    """
    config = model.config.get_text_config(decoder=True)
    if model.config._attn_implementation not in MASKED_ATTENTION:
        return []
    types = tuple(sorted(set(getattr(config, "layer_types", None) or ["full_attention"])))
    if any(kind != "full_attention" and kind not in WINDOWS for kind in types):
        return []
    if types != ("full_attention",):
        return [Masking(layers=types), *([Masking(single=types[0])] if len(types) == 1 else [])]
    windowed = [
        Masking(single=kind) for kind, name in WINDOWS.items() if getattr(config, name, None)
    ]
    return [*windowed, Masking()]


@contextmanager
def narrow_windows(model: Any, size: int) -> Iterator[None]:
    """Narrow the windows of the model's layers to `size` tokens; a short text then exceeds them."""
    config = model.config.get_text_config(decoder=True)
    names = [name for name in WINDOWS.values() if getattr(config, name, None)]
    own = {name: getattr(config, name) for name in names}
    try:
        for name in names:
            setattr(config, name, min(size, own[name]))
        yield
    finally:
        for name, value in own.items():
            setattr(config, name, value)
