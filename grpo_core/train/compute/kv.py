"""Keep keys and values in buffers with spare room, so that a new token is written in place.

The cache of transformers allocates a new tensor for each token: it copies the whole cache in every
step of decoding.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

SPARE = 32
"""Least number of tokens that a new buffer has room for beyond those that it holds."""


class GrowingLayer(DynamicLayer):  # type: ignore[misc]
    """Hold the keys and values (K, heads, S, head size) of one layer as views of larger buffers."""

    keys: Any
    values: Any

    def __init__(self) -> None:
        super().__init__()
        self._storages: dict[str, Tensor] = {}

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Append keys and values of new tokens; return those of all tokens."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.keys = self._append("keys", self.keys, key_states)
        self.values = self._append("values", self.values, value_states)
        return self.keys, self.values

    def _append(self, name: str, held: Tensor, new: Tensor) -> Tensor:
        """Return `held` with `new` behind it along the tokens, in a buffer that may grow."""
        old_length = held.shape[-2] if held.numel() else 0
        length, buffer = old_length + new.shape[-2], self._storages.get(name)
        # Other lines were selected, or the buffer is full.
        if buffer is None or buffer.data_ptr() != held.data_ptr() or length > buffer.shape[-2]:
            buffer = self._storages[name] = new.new_empty(
                *new.shape[:-2], length + max(SPARE, length // 4), new.shape[-1]
            )
            if old_length:
                buffer[..., :old_length, :] = held
        buffer[..., old_length:length, :] = new
        return buffer[..., :length, :]


def growing_cache(model: Any) -> DynamicCache:
    """Return an empty cache for `model`.

    Layers that drop tokens (sliding windows and the like) stay those of transformers.
    """
    cache = DynamicCache(config=model.config)
    cache.layers = [
        GrowingLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers
    ]
    return cache


def bytes_per_token(model: Any) -> int:
    """Return the bytes of the keys and values of one token in all layers."""
    config = model.config.get_text_config(decoder=True)
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    itemsize = next(model.parameters()).dtype.itemsize
    return 2 * int(config.num_hidden_layers) * int(heads) * int(size) * int(itemsize)


def join_caches(first: DynamicCache, second: DynamicCache) -> None:
    """Append the lines of `second` to those of `first`, in place.

    The narrower of the two is padded on the left.
    """
    for layer, more in zip(first.layers, second.layers, strict=True):
        width = max(layer.keys.shape[-2], more.keys.shape[-2])
        layer.keys = torch.cat([_pad_left(layer.keys, width), _pad_left(more.keys, width)])
        layer.values = torch.cat([_pad_left(layer.values, width), _pad_left(more.values, width)])


def drop_columns(cache: DynamicCache, start: int) -> None:
    """Remove the first `start` columns, in place."""
    for layer in cache.layers:
        layer.keys, layer.values = (
            layer.keys[..., start:, :].clone(),
            layer.values[..., start:, :].clone(),
        )


def _pad_left(states: Tensor, width: int) -> Tensor:
    """Return keys or values padded on the left to `width` tokens."""
    return torch.nn.functional.pad(states, (0, 0, width - states.shape[-2], 0))


def cache_argument(model: Any, cache: Any) -> dict[str, Any]:
    """Return the keyword argument by which the model's forward pass takes a cache.

    transformers renamed it in 5.24.
    """
    base = model.get_base_model() if hasattr(model, "peft_config") else model
    return {"cache" if _takes_cache(type(base).forward) else "past_key_values": cache}


@functools.cache
def _takes_cache(forward: Callable[..., Any]) -> bool:
    """Return True if `forward` takes the cache as `cache`, the name since transformers 5.24."""
    return "cache" in inspect.signature(forward).parameters
