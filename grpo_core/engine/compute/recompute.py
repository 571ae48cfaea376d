"""Recompute layers in the backward pass: gradient checkpointing (Chen et al., arXiv 1604.06174).

Between forward and backward pass only the input of each layer is kept, and the layer is computed a
second time. The switch of transformers works in train mode only. A policy's model is always in eval
mode, since in train mode older architectures apply dropout at a rate in their configuration, which
would make every ratio a random number.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from grpo_core.engine.compute.heap import give_back_freed_memory
from grpo_core.engine.models.swapped import swapped
from grpo_core.protocol.errors import ConfigError


def recompute(model: Any) -> None:
    """Make every layer of `model` compute its activations again in the backward pass.

    On a CPU, freed memory then returns to the system at once.

    Raises:
        ConfigError: the model does not mark its layers for checkpointing.
    """
    marked_layers = layers(model)
    if not marked_layers:
        raise ConfigError(
            f"{type(model).__name__} does not mark its layers, so trainer.gradient_checkpointing "
            "cannot work; remove that setting, or lower trainer.micro_batch_tokens instead"
        )
    for layer in marked_layers:
        layer.forward = _Recomputed(layer.forward)
    give_back_freed_memory()


def layers(model: Any) -> list[Any]:
    """Return the layers of `model` that can be recomputed."""
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def is_recomputed(layer: Any) -> bool:
    """Return True if `layer` is computed again in the backward pass."""
    return isinstance(layer.forward, _Recomputed)


def kept(layer: Any) -> AbstractContextManager[None]:
    """Return a context that keeps this layer's results for the backward pass.

    They are not recomputed there.
    """
    return swapped("keeps", [(layer.forward, True)])


class _Recomputed:
    """Wrap a layer's forward function so that it is computed again in the backward pass."""

    def __init__(self, forward: Any) -> None:
        self.forward = forward
        self.keeps = False
        """Compute the layer once and keep its results, as without this wrapper."""

    def __call__(self, *args: Any, **more: Any) -> Any:
        if self.keeps or not torch.is_grad_enabled():
            return self.forward(*args, **more)
        return checkpoint(self.forward, *args, use_reentrant=False, **more)
