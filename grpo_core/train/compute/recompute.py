"""Gradient checkpointing (Chen et al., arXiv 1604.06174): between forward and backward pass only what enters each layer is kept, and the
layer is computed a second time.

transformers' own switch works in train mode only. A policy's model is always in eval mode, since in train mode older architectures drop
out by a rate in their configuration, which would make every ratio a random number.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from grpo_core.protocol.errors import ConfigError
from grpo_core.train.compute.heap import give_back_freed_memory


def recompute(model: Any) -> None:
    """Let every layer of `model` be computed again in the backward pass; on a CPU, what is freed goes back to the system at once."""
    found = layers(model)
    if not found:
        raise ConfigError(
            f"{type(model).__name__} does not mark its layers, so trainer.gradient_checkpointing cannot work; "
            "leave it away, or lower trainer.micro_batch_tokens"
        )
    for layer in found:
        layer.forward = _Recomputed(layer.forward)
    give_back_freed_memory()


def layers(model: Any) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def is_recomputed(layer: Any) -> bool:
    return isinstance(layer.forward, _Recomputed)


@contextmanager
def kept(layer: Any) -> Iterator[None]:
    """What this one layer makes is kept for the backward pass."""
    layer.forward.keeps = True
    try:
        yield
    finally:
        layer.forward.keeps = False


class _Recomputed:
    """A layer's forward. keeps: compute it once, as if this were not there."""

    def __init__(self, forward: Any) -> None:
        self.forward = forward
        self.keeps = False

    def __call__(self, *args: Any, **more: Any) -> Any:
        if self.keeps or not torch.is_grad_enabled():
            return self.forward(*args, **more)
        return checkpoint(self.forward, *args, use_reentrant=False, **more)
