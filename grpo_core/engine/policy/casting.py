"""Cast weights to the type of the forward pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from grpo_core.engine.compute.precision import can_be_float32, in_float32
from grpo_core.engine.compute.stacked import Stacks
from grpo_core.engine.models.adapter import adapted_layers, in_type_of_input


class Casting:
    """Cast the weights of a model in its forward pass, where they are kept in another type.

    Args:
        model: the model.
        dtype: the type of the forward pass; trained weights are kept in float32.
        kept_dtype: the type that the weights are kept in.
    """

    def __init__(self, model: Any, dtype: torch.dtype, kept_dtype: torch.dtype) -> None:
        self._model = model
        self.dtype = dtype
        """The type of the forward pass."""
        self.casts = dtype != kept_dtype
        """Whether all weights are cast."""
        self.is_half = dtype in (torch.bfloat16, torch.float16)
        self.merges = dtype in (torch.float32, torch.float64) and not self.casts
        """Whether an adapter can be merged into the weights without loss: in bfloat16 the sum would
        round away what it has learned."""
        self.adapted = adapted_layers(model) if self.is_half else []
        """The layers whose adapters are cast."""
        self.stacks: Stacks | None = None
        """Adapted layers that are computed as one product, if any."""

    @contextmanager
    def autocast(self, device_type: str) -> Iterator[None]:
        """Cast to the type of the forward pass where some weights are kept in another type.

        These may be all weights, or only those of an adapter, or none.
        """
        if not self.casts and not self.adapted:
            yield
            return
        if self.stacks is not None:
            self.stacks.refresh()
        with torch.autocast(device_type, dtype=self.dtype), in_type_of_input(self.adapted):
            yield

    @contextmanager
    def exactly(self) -> Iterator[bool]:
        """Compute in float32 inside the context, if possible; enter with whether it is."""
        own = self.dtype, self.casts, self.adapted
        if self.stacks is not None or not can_be_float32(self._model):
            yield False
            return
        try:
            if self.is_half:
                self.dtype, self.casts, self.adapted = torch.float32, False, []
            with in_float32(self._model):
                yield True
        finally:
            self.dtype, self.casts, self.adapted = own
