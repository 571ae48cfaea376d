"""Copy weights for products with few rows, as decoding makes them: in another layout or type.

On a CPU, such a product spends more time on reading a plain matrix than on multiplying. The layout
is that of oneDNN's primitives, which PyTorch's compiler uses for frozen weights in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from grpo_core.engine.compute.same_input import Parts
from grpo_core.engine.models.adapter import adapted_layers, product

FEW_ROWS, FEW_TOKENS = 4, 8
"""With fewer rows a product is limited by memory; for fewer tokens the layout does not pay off."""

NARROW = 32
"""Smallest width of a matrix that is packed: products with narrower ones gain nothing. The matrices
of an adapter are packed together with their layer (`_adapter_forwards`)."""


@contextmanager
def prepacked(
    model: Any,
    rows: int | None,
    *,
    compute_dtype: torch.dtype | None = None,
    together: Sequence[Sequence[Any]] = (),
) -> Iterator[None]:
    """Make the linear layers of `model` compute with copies of their weights, made once on entry.

    The copies have no gradients and hold the weights as they are on entry. On a CPU they are packed
    where there is a layout for them. Does nothing to sharded and offloaded weights, and without
    `compute_dtype` nothing where there is no layout: other devices and precisions.

    Args:
        model: the model.
        rows: number of rows, about, that the layout suits; None packs nothing.
        compute_dtype: type that autocast casts to inside the context. The copies are in this type,
            so that it does not cast the weights again in each product: it keeps what it has cast,
            but not in inference mode.
        together: layers with adapters that get the same input (see `same_inputs`), which are
            packed as one where there is a layout for the type of their weights.
    """
    if compute_dtype is None:
        forwards = {} if rows is None else _packed_forwards(model, rows, together)
    else:
        forwards = {
            layer: _cast_forward(layer, rows, compute_dtype)
            for layer in _castable(model, compute_dtype)
            if _is_whole(layer.weight)
        }
    own_forwards = [vars(layer).get("forward") for layer in forwards]
    try:
        for layer, forward in forwards.items():
            layer.forward = forward
        yield
    finally:
        for layer, own in zip(forwards, own_forwards, strict=True):
            vars(layer).pop("forward", None)
            if own is not None:
                layer.forward = own


def packed_bytes(model: Any) -> int:
    """Return the bytes of the copies that `prepacked` makes without `compute_dtype`."""
    return sum(layer.weight.nbytes for layer in _packable(model))


def cast_bytes(model: Any, compute_dtype: torch.dtype) -> int:
    """Return the bytes of the copies that `prepacked` makes with `compute_dtype`."""
    numbers = sum(layer.weight.numel() for layer in _castable(model, compute_dtype))
    return numbers * compute_dtype.itemsize


def largest_cast_bytes(model: Any, compute_dtype: torch.dtype) -> int:
    """Return the bytes of the largest weight that autocast casts anew for each product."""
    return max(
        (
            layer.weight.numel() * compute_dtype.itemsize
            for layer in _castable(model, compute_dtype)
        ),
        default=0,
    )


def can_be_packed_together(model: Any) -> bool:
    """Return True if `prepacked` can pack layers with adapters as one."""
    return any(
        _can_be_packed(base) and base.weight.dtype == torch.bfloat16
        for base in (layer.get_base_layer() for layer in adapted_layers(model))
    )


def _packed_forwards(
    model: Any, rows: int, together: Sequence[Sequence[Any]]
) -> dict[Any, Callable[[Tensor], Any]]:
    """Return forward functions of the layers that can be packed in the type of their weights."""
    # Into other weights than bfloat16 the adapter is merged (see `merged`).
    adapters = {
        layer: matrices
        for layer in adapted_layers(model)
        if _can_be_packed(layer.get_base_layer())
        and layer.get_base_layer().weight.dtype == torch.bfloat16
        and (matrices := product(layer)) is not None
    }
    base_layers = {layer.get_base_layer() for layer in adapters}
    groups = [[layer for layer in group if layer in adapters] for group in together]
    grouped = set(chain.from_iterable(groups))
    groups += [[layer] for layer in adapters if layer not in grouped]
    return {
        **{
            layer: forward
            for group in groups
            for layer, forward in _adapter_forwards(group, adapters, rows)
        },
        **{
            layer: _packed_forward(layer, rows)
            for layer in _packable(model)
            if layer not in base_layers
        },
    }


def _packable(model: Any) -> list[torch.nn.Linear]:
    """Return the linear layers that can be packed in the type of their weights."""
    return [layer for layer in _linear_layers(model) if _can_be_packed(layer)]


def _castable(model: Any, compute_dtype: torch.dtype) -> list[torch.nn.Linear]:
    """Return the linear layers, sharded or not, whose weights autocast casts."""
    return [
        layer
        for layer in _linear_layers(model)
        if layer.weight.is_floating_point()
        and layer.weight.dtype not in (torch.float64, compute_dtype)
        and layer.weight.device.type != "meta"
    ]


def _linear_layers(model: Any) -> list[torch.nn.Linear]:
    """Return the plain linear layers of `model`, without the matrices of adapters.

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
        module
        for module in model.modules()
        if module not in of_adapters and type(module) is torch.nn.Linear
    ]


def _is_whole(weight: Any) -> bool:
    """Return True if a weight is a plain tensor, and no part of a sharded one."""
    return type(weight) in (Tensor, torch.nn.Parameter)


def _can_be_packed(module: Any, dtype: torch.dtype | None = None) -> bool:
    """Return True for a plain linear layer on the CPU whose weight has a layout.

    Args:
        module: the layer.
        dtype: type of the packed copy; that of the weight if None.
    """
    if type(module) is not torch.nn.Linear or not _is_whole(module.weight):
        return False
    weight: Tensor = module.weight
    return (
        weight.device.type == "cpu"
        and _has_layout(dtype or weight.dtype)
        and min(weight.shape) >= NARROW
    )


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
    return _multiply_packed(layer.weight.detach(), layer.bias, rows)


def _multiply_packed(weight: Tensor, bias: Tensor | None, rows: int) -> Callable[[Tensor], Tensor]:
    """Return a function that multiplies by a packed copy of `weight` and adds the bias."""
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
    return lambda inputs: torch.ops.mkldnn._linear_pointwise(inputs, packed, bias, "none", [], "")


def _cast_forward(
    layer: torch.nn.Linear, rows: int | None, dtype: torch.dtype
) -> Callable[[Tensor], Tensor]:
    """Return a forward function of a linear layer that uses a copy of its weight in `dtype`.

    Where the model switches autocast off, it computes with the weight itself.
    """
    weight = layer.weight.detach().to(dtype)
    bias = None if layer.bias is None else layer.bias.detach().to(dtype)
    compute = (
        _multiply_packed(weight, bias, rows)
        if rows is not None and _can_be_packed(layer, dtype)
        else partial(torch.nn.functional.linear, weight=weight, bias=bias)
    )
    own, device = layer.forward, layer.weight.device.type
    return lambda inputs: (
        compute(inputs.to(dtype)) if torch.is_autocast_enabled(device) else own(inputs)
    )


def _adapter_forwards(
    layers: Sequence[Any], adapters: Mapping[Any, tuple[Tensor, Tensor]], rows: int
) -> Iterator[tuple[Any, Callable[[Tensor], Any]]]:
    """Yield layers with the same input, each with its forward function; all are packed as one.

    The second product of the adapters adds to the output of the layers: three operations for all,
    instead of peft's nine for each.
    """
    if not layers:
        return
    bases = [layer.get_base_layer() for layer in layers]
    dtype = bases[0].weight.dtype
    downs, ups = zip(*(adapters[layer] for layer in layers), strict=True)
    biases = [
        base.weight.new_zeros(base.out_features) if base.bias is None else base.bias
        for base in bases
    ]
    has_bias = any(base.bias is not None for base in bases)
    compute = _multiply_packed(
        _joined([base.weight.detach() for base in bases]),
        _joined(biases) if has_bias else None,
        rows,
    )
    first, second = (
        torch.ops.mkldnn._reorder_linear_weight(matrix.detach().to(dtype), rows)
        for matrix in (torch.cat(downs), torch.block_diag(*ups))  # type: ignore[no-untyped-call]
    )
    sizes = [base.out_features for base in bases]

    def outputs(inputs: Tensor, adapted: bool) -> Sequence[Tensor]:
        plain = compute(inputs)
        if adapted:
            narrow = torch.ops.mkldnn._linear_pointwise(inputs, first, None, "none", [], "")
            plain = torch.ops.mkldnn._linear_pointwise.binary(narrow, plain, second, None, "add")
        return torch.split(plain, sizes, dim=-1) if len(sizes) > 1 else (plain,)

    parts = Parts(len(layers), outputs)
    for i, layer in enumerate(layers):
        yield layer, partial(_take, parts, i, layer)


def _joined(matrices: list[Tensor]) -> Tensor:
    """Return matrices or biases behind one another; a single one is not copied."""
    return matrices[0] if len(matrices) == 1 else torch.cat(matrices)


def _take(parts: Parts, i: int, layer: Any, inputs: Tensor) -> Tensor:
    """Return the output of a layer of those that are computed together."""
    return parts.take(i, inputs, adapted=not layer.disable_adapters)
