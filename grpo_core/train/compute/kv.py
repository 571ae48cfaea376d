"""Keys and values of what was said so far, kept with room to spare: the next token is written beside the others, which stay in place.

The cache of transformers makes a new tensor of everything for each token: a copy of the whole cache in every step of decoding.
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
"""Least number of tokens that there is room for beyond those that are there."""


class GrowingLayer(DynamicLayer):  # type: ignore[misc]
    """keys, values: (K, heads, S, head size), views of a larger room."""

    keys: Any
    values: Any

    def __init__(self) -> None:
        super().__init__()
        self._rooms: dict[str, Tensor] = {}

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.keys = self._put("keys", self.keys, key_states)
        self.values = self._put("values", self.values, value_states)
        return self.keys, self.values

    def _put(self, name: str, kept: Tensor, new: Tensor) -> Tensor:
        have = kept.shape[-2] if kept.numel() else 0
        need, room = have + new.shape[-2], self._rooms.get(name)
        if (
            room is None or room.data_ptr() != kept.data_ptr() or need > room.shape[-2]
        ):  # others were chosen, or it is full
            size = need + max(SPARE, need // 4)
            room = self._rooms[name] = new.new_empty(*new.shape[:-2], size, new.shape[-1])
            if have:
                room[..., :have, :] = kept
        room[..., have:need, :] = new
        return room[..., :need, :]


def growing_cache(model: Any) -> DynamicCache:
    """An empty one for `model`; layers that forget (sliding windows and their like) stay those of transformers."""
    cache = DynamicCache(config=model.config)
    cache.layers = [
        GrowingLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers
    ]
    return cache


def keeps_everything(cache: DynamicCache) -> bool:
    """Whether every layer has keys and values of every token, so that caches can be widened and joined."""
    return all(type(layer) is GrowingLayer for layer in cache.layers)


def bytes_per_token(model: Any) -> int:
    """Of keys and values of all layers."""
    config = model.config.get_text_config(decoder=True)
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    weight = next(model.parameters())
    itemsize: int = torch.empty((), dtype=weight.dtype).element_size()
    return 2 * int(config.num_hidden_layers) * int(heads) * int(size) * itemsize


def joined(first: DynamicCache, second: DynamicCache) -> None:
    """Put the lines of `second` behind those of `first`, in which they stay; the narrower is widened on the left."""
    for layer, more in zip(first.layers, second.layers, strict=True):
        width = max(layer.keys.shape[-2], more.keys.shape[-2])
        layer.keys = torch.cat([_widened(layer.keys, width), _widened(more.keys, width)])
        layer.values = torch.cat([_widened(layer.values, width), _widened(more.values, width)])


def trim(cache: DynamicCache, start: int) -> None:
    """Leave out the first `start` columns."""
    for layer in cache.layers:
        layer.keys, layer.values = (
            layer.keys[..., start:, :].clone(),
            layer.values[..., start:, :].clone(),
        )


def _widened(states: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(states, (0, 0, width - states.shape[-2], 0))


def cache_argument(model: Any, cache: Any) -> dict[str, Any]:
    """Return the argument by which the model's forward pass takes a cache: transformers renamed it in 5.24."""
    base = model.get_base_model() if hasattr(model, "peft_config") else model
    return {"cache" if _takes_cache(type(base).forward) else "past_key_values": cache}


@functools.cache
def _takes_cache(forward: Callable[..., Any]) -> bool:
    return "cache" in inspect.signature(forward).parameters
