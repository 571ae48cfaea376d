"""Weights laid out for products with few rows, as decoding makes them: on a CPU, finding a plain matrix's numbers costs more than
multiplying them.

The layout is that of oneDNN's primitives, which PyTorch's compiler uses for frozen weights in the same way.
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
"""With fewer rows memory is what limits a product, and for fewer tokens the layout is not worth making."""

NARROW = 32
"""Products with a matrix that is narrower gain nothing; those of an adapter are packed together with their layer's (`_adapted`)."""


@contextmanager
def prepacked(model: Any, rows: int) -> Iterator[None]:
    """The linear layers of `model` compute with copies of their weights in a layout for about `rows` rows; without gradients, and with the
    weights as they are now. Does nothing where there is no such layout: other devices and precisions, weights in parts."""
    adapters = {
        layer: matrices
        for layer in adapted_layers(model)
        if (matrices := _matrices(layer)) is not None
    }
    inside = {layer.get_base_layer() for layer in adapters}
    layers = [*adapters, *(layer for layer in _packable(model) if layer not in inside)]
    own = [vars(layer).get("forward") for layer in layers]
    try:
        for layer in layers:
            layer.forward = (
                _adapted(layer, *adapters[layer], rows)
                if layer in adapters
                else _forward(layer, rows)
            )
        yield
    finally:
        for layer, forward in zip(layers, own, strict=True):
            if forward is not None:
                layer.forward = forward
            else:
                vars(layer).pop("forward", None)


def _matrices(layer: Any) -> tuple[Tensor, Tensor] | None:
    """Of an adapter that is computed with its layer, which only bfloat16 needs: to other weights it is added (see `merged`)."""
    base = layer.get_base_layer()
    found = product(layer) if _can_be_packed(base) and base.weight.dtype == torch.bfloat16 else None
    return found if found is None else (found[0].detach(), found[1].detach())


def packed_bytes(model: Any) -> int:
    """Of the copies that `prepacked` makes."""
    return sum(layer.weight.nbytes for layer in _packable(model))


def _packable(model: Any) -> list[torch.nn.Linear]:
    """Without the matrices of adapters: peft's layers compute with them in a type of their own, which need not be that of their input."""
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
    if type(module) is not torch.nn.Linear or type(module.weight) not in (
        Tensor,
        torch.nn.Parameter,
    ):
        return False
    weight: Tensor = module.weight
    return weight.device.type == "cpu" and _has_layout(weight.dtype) and min(weight.shape) >= NARROW


@cache
def _has_layout(dtype: torch.dtype) -> bool:
    """Whether this build of PyTorch, on this processor, has one."""
    if not hasattr(torch.ops.mkldnn, "_reorder_linear_weight") or not hasattr(
        torch.ops.mkldnn, "_linear_pointwise"
    ):
        return False
    return dtype == torch.float32 or (
        dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


def _forward(layer: torch.nn.Linear, rows: int) -> Callable[[Tensor], Tensor]:
    packed = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), rows)

    def forward(inputs: Tensor) -> Tensor:
        found: Tensor = torch.ops.mkldnn._linear_pointwise(
            inputs, packed, layer.bias, "none", [], ""
        )
        return found

    return forward


def _adapted(layer: Any, down: Tensor, up: Tensor, rows: int) -> Callable[[Tensor], Tensor]:
    """Of a layer with an adapter, whose second product adds to what the layer gave: three operations for peft's nine."""
    base = layer.get_base_layer()
    compute = _forward(base, rows)
    first, second = (
        torch.ops.mkldnn._reorder_linear_weight(matrix.to(base.weight.dtype), rows)
        for matrix in (down, up)
    )

    def forward(inputs: Tensor) -> Tensor:
        if layer.disable_adapters:
            return compute(inputs)
        narrow = torch.ops.mkldnn._linear_pointwise(inputs, first, None, "none", [], "")
        found: Tensor = torch.ops.mkldnn._linear_pointwise.binary(
            narrow, compute(inputs), second, None, "add"
        )
        return found

    return forward
