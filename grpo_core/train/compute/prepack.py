"""Lay out weights for products with few rows, as decoding makes them.

On a CPU, such a product spends more time on reading a plain matrix than on multiplying. The layout
is that of oneDNN's primitives, which PyTorch's compiler uses for frozen weights in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

from grpo_core.train.models.adapter import adapted_layers, product

FEW_ROWS, FEW_TOKENS = 4, 8
"""With fewer rows a product is limited by memory; for fewer tokens the layout does not pay off."""

NARROW = 32
"""Smallest width of a matrix that is packed: products with narrower ones gain nothing. The matrices
of an adapter are packed together with their layer (`_adapter_forward`)."""


@contextmanager
def prepacked(model: Any, rows: int) -> Iterator[None]:
    """Let the linear layers of `model` compute with packed copies of their weights.

    The copies are laid out for about `rows` rows, have no gradients, and hold the weights as they
    are on entry. Does nothing where there is no such layout: other devices and precisions, sharded
    weights.
    """
    # Into other weights than bfloat16 the adapter is merged (see `merged`).
    adapters = {
        layer: matrices
        for layer in adapted_layers(model)
        if _can_be_packed(layer.get_base_layer())
        and layer.get_base_layer().weight.dtype == torch.bfloat16
        and (matrices := product(layer)) is not None
    }
    base_layers = {layer.get_base_layer() for layer in adapters}
    layers = [*adapters, *(layer for layer in _packable(model) if layer not in base_layers)]
    own_forwards = [vars(layer).get("forward") for layer in layers]
    try:
        for layer in layers:
            layer.forward = (
                _adapter_forward(layer, *adapters[layer], rows)
                if layer in adapters
                else _packed_forward(layer, rows)
            )
        yield
    finally:
        for layer, forward in zip(layers, own_forwards, strict=True):
            vars(layer).pop("forward", None)
            if forward is not None:
                layer.forward = forward


def packed_bytes(model: Any) -> int:
    """Return the bytes of the copies that `prepacked` makes."""
    return sum(layer.weight.nbytes for layer in _packable(model))


def _packable(model: Any) -> list[torch.nn.Linear]:
    """Return the linear layers that can be packed, without the matrices of adapters.

    peft's layers compute with those matrices in their own type, which may differ from that of the
    layer's input.
    """
    of_adapters = {
        part
        for layer in adapted_layers(model)
        for part in layer.modules()
        if part is not layer.get_base_layer()
    }
    return [
        module for module in model.modules() if module not in of_adapters and _can_be_packed(module)
    ]


def _can_be_packed(module: Any) -> bool:
    """Return True for a plain linear layer on the CPU whose weight has a layout."""
    if type(module) is not torch.nn.Linear or type(module.weight) not in (
        Tensor,
        torch.nn.Parameter,
    ):
        return False
    weight: Tensor = module.weight
    return weight.device.type == "cpu" and _has_layout(weight.dtype) and min(weight.shape) >= NARROW


@cache
def _has_layout(dtype: torch.dtype) -> bool:
    """Return True if this build of PyTorch has a layout for `dtype` on this processor."""
    return all(
        hasattr(torch.ops.mkldnn, operation)
        for operation in ("_reorder_linear_weight", "_linear_pointwise")
    ) and (
        dtype == torch.float32
        or (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )


def _packed_forward(layer: torch.nn.Linear, rows: int) -> Callable[[Tensor], Tensor]:
    """Return a forward function of a linear layer that uses a packed copy of its weight."""
    packed = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), rows)
    return lambda inputs: torch.ops.mkldnn._linear_pointwise(
        inputs, packed, layer.bias, "none", [], ""
    )


def _adapter_forward(layer: Any, down: Tensor, up: Tensor, rows: int) -> Callable[[Tensor], Tensor]:
    """Return a forward function of a layer with an adapter, both packed.

    The second product of the adapter adds to the output of the layer: three operations instead of
    peft's nine.
    """
    base = layer.get_base_layer()
    compute = _packed_forward(base, rows)
    first, second = (
        torch.ops.mkldnn._reorder_linear_weight(matrix.detach().to(base.weight.dtype), rows)
        for matrix in (down, up)
    )

    def forward(inputs: Tensor) -> Any:
        if layer.disable_adapters:
            return compute(inputs)
        narrow = torch.ops.mkldnn._linear_pointwise(inputs, first, None, "none", [], "")
        return torch.ops.mkldnn._linear_pointwise.binary(
            narrow, compute(inputs), second, None, "add"
        )

    return forward
