"""Find the layers of a model that get the same input, and compute them together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from grpo_core.engine.models.adapter import adapted_layers, product


class Parts:
    """Compute several layers at the call of the first one, and keep each one's output for its call.

    Args:
        count: number of layers, which are called in their order.
        compute: returns the outputs of all, with or without their adapters.
    """

    def __init__(self, count: int, compute: Callable[[Tensor, bool], Sequence[Tensor]]) -> None:
        self._last, self._compute = count - 1, compute
        self._inputs: Tensor | None = None
        self._parts: Sequence[Tensor] = ()

    def take(self, i: int, inputs: Tensor, *, adapted: bool) -> Tensor:
        """Return the output of layer `i`, with its adapter or without."""
        if i == 0 or inputs is not self._inputs:
            self._inputs, self._parts = inputs, self._compute(inputs, adapted)
        part = self._parts[i]
        if i == self._last:
            self._inputs, self._parts = None, ()
        return part


def same_inputs(model: Any, compute: Callable[[], object]) -> list[list[Any]]:
    """Return the adapted layers that can be computed together, those with the same input in a list.

    Args:
        model: the model.
        compute: makes a forward pass, in which every layer's input is seen.
    """
    calls: list[tuple[Any, Tensor]] = []
    hooks = [
        layer.register_forward_pre_hook(lambda layer, args: calls.append((layer, args[0])))
        for layer in adapted_layers(model)
        if _can_be_joined(layer)
    ]
    try:
        compute()
    finally:
        for hook in hooks:
            hook.remove()
    times = Counter(id(layer) for layer, _ in calls)

    def same(call: tuple[Any, Tensor]) -> tuple[Any, ...]:
        layer, inputs = call
        (adapter,) = layer.active_adapters
        weight = layer.get_base_layer().weight
        return id(inputs), layer.scaling[adapter], weight.dtype, weight.device

    once = [call for call in calls if times[id(call[0])] == 1]
    return [[layer for layer, _ in group] for _, group in groupby(once, same)]


def _can_be_joined(layer: Any) -> bool:
    """Return True for a plain frozen layer whose adapter is a product of two matrices."""
    base = layer.get_base_layer()
    return (
        type(base) is torch.nn.Linear
        and type(base.weight) is torch.nn.Parameter
        and base.weight.device.type != "meta"
        and not any(parameter.requires_grad for parameter in base.parameters())
        and product(layer) is not None
    )
