"""Compute with weights of half precision in float32, one layer at a time.

So two ways to compute the same thing can be compared without the noise of half precision, and
without memory for a second copy of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from grpo_core.engine.compute.recompute import layers

HALF = (torch.bfloat16, torch.float16)


def can_be_float32(model: Any) -> bool:
    """Return True if `in_float32` gives exact results: no weight is quantized or offloaded."""
    return all(
        tensor.device.type != "meta" and type(tensor) in (Tensor, torch.nn.Parameter)
        for tensor in model.parameters()
    )


@contextmanager
def in_float32(model: Any) -> Iterator[None]:
    """Compute in float32 inside the context; weights in half precision are restored to the bit.

    The layers that a model marks are cast while they compute; everything else is cast on entry.
    """
    marked_layers = layers(model)
    inside = {id(tensor) for layer in marked_layers for tensor in _tensors(layer)}
    with ExitStack() as stack:
        rest = [tensor for tensor in _tensors(model) if id(tensor) not in inside]
        stack.callback(_cast(rest))
        for layer in marked_layers:
            restores: list[Callable[[], None]] = []

            def cast(module: Any, *_: Any, restores: list[Callable[[], None]] = restores) -> None:
                restores.append(_cast(list(_tensors(module))))

            def restore(*_: Any, restores: list[Callable[[], None]] = restores) -> None:
                restores.pop()()

            stack.callback(layer.register_forward_pre_hook(cast).remove)
            stack.callback(layer.register_forward_hook(restore, always_call=True).remove)
        yield


def _tensors(module: Any) -> Iterator[Tensor]:
    """Yield the weights and buffers of a module, and of everything in it, once each."""
    yield from module.parameters()
    yield from module.buffers()


def _cast(tensors: list[Tensor]) -> Callable[[], None]:
    """Cast tensors of half precision to float32; return a function that casts them back."""
    own_types = [(tensor, tensor.dtype) for tensor in tensors if tensor.dtype in HALF]
    for tensor, _ in own_types:
        tensor.data = tensor.data.float()

    def restore() -> None:
        for tensor, dtype in own_types:
            tensor.data = tensor.data.to(dtype)

    return restore
