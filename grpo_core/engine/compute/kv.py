"""Keep keys and values in buffers with spare room, so that a new token is written in place.

The cache of transformers allocates a new tensor for each token: it copies the whole cache in every
step of decoding.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, cache_utils
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

_EMPTY_LAYERS: tuple[type, ...] = (
    (cache_utils.DummyLayer,) if hasattr(cache_utils, "DummyLayer") else ()
)
"""The classes of layers that hold nothing, such as one that reads the keys of another layer.

transformers has them from 5.23 on; caches of older versions have no entry for such a layer.
"""
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
    """Return an empty cache for `model` that keeps every token in every layer.

    Windows are left to the masks (see `masks`).

    Raises:
        TypeError: a layer keeps something other than keys and values of tokens.
    """
    cache = DynamicCache(config=model.config)
    layers = [_growing_layer(layer) for layer in cache.layers]
    cache.layers = layers
    return cache


def open_cache(model: Any) -> DynamicCache:
    """Return an empty cache for `model`: a growing one where there are only keys and values."""
    try:
        return growing_cache(model)
    except TypeError:
        return DynamicCache(config=model.config)


def keeps_everything(cache: DynamicCache) -> bool:
    """Return True if the cache is a growing one, which can be widened and joined."""
    return all(type(layer) in (GrowingLayer, *_EMPTY_LAYERS) for layer in cache.layers)


def _growing_layer(layer: Any) -> Any:
    """Return a growing layer in place of one of transformers."""
    if type(layer) in _EMPTY_LAYERS:
        return layer
    if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer):
        raise TypeError(f"a {type(layer).__name__} keeps more than keys and values")
    return GrowingLayer()


def filled_layers(cache: DynamicCache) -> list[GrowingLayer]:
    """Return the layers of a growing cache that hold keys and values."""
    return [layer for layer in cache.layers if type(layer) is GrowingLayer and layer.is_initialized]


def bytes_per_token(model: Any, device: torch.device) -> int:
    """Return the bytes that a cache keeps for each token of a sequence, by trying.

    States that do not grow are shared out over a short text. 0 for a model without a cache.
    """
    count = 32
    tokens = torch.arange(count, device=device)[None] % model.config.get_text_config().vocab_size
    try:
        cache = DynamicCache(config=model.config)
        with torch.no_grad():
            model(input_ids=tokens, **cache_argument(model, cache), use_cache=True)
    except Exception:  # noqa: BLE001 - a model without such a cache may raise anything
        return 0
    return sum(tensor.nbytes for layer in cache.layers for tensor in _states(layer)) // count


def _states(layer: Any) -> Iterator[Tensor]:
    """Yield the tensors that a layer of a cache holds."""
    for value in vars(layer).values():
        parts = value.values() if isinstance(value, dict) else value
        parts = parts if isinstance(parts, Iterable) and not isinstance(parts, Tensor) else [parts]
        yield from (part for part in parts if isinstance(part, Tensor))


def join_caches(first: DynamicCache, second: DynamicCache) -> None:
    """Append the lines of `second` to those of `first`, in place.

    The narrower of the two is padded on the left.
    """
    for layer, more in zip(filled_layers(first), filled_layers(second), strict=True):
        width = max(layer.keys.shape[-2], more.keys.shape[-2])
        layer.keys = torch.cat([_pad_left(layer.keys, width), _pad_left(more.keys, width)])
        layer.values = torch.cat([_pad_left(layer.values, width), _pad_left(more.values, width)])


def drop_columns(cache: DynamicCache, start: int) -> None:
    """Remove the first `start` columns, in place."""
    for layer in filled_layers(cache):
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
    return {"cache" if accepts(model, "cache") else "past_key_values": cache}


def accepts(model: Any, parameter: str) -> bool:
    """Return True if the model's forward pass has a parameter of this name."""
    base = model.get_base_model() if hasattr(model, "peft_config") else model
    return parameter in _parameters(type(base).forward)


@functools.cache
def _parameters(forward: Callable[..., Any]) -> frozenset[str]:
    """Return the names of the parameters of a forward pass."""
    return frozenset(inspect.signature(forward).parameters)
