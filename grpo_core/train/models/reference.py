"""The reference that a KL is measured against: frozen, or following the policy at a distance."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from grpo_core.config.settings import KLConfig
from grpo_core.protocol.errors import ConfigError

ADAPTER = "reference"
"""Name of the frozen copy of a pre-tuned adapter."""


class Reference:
    """copied: a whole frozen model, for full fine-tuning; without it, `model` itself is the reference with its adapter switched off, or
    with a frozen one in its place, or, once it follows the policy, with other weights in the adapter."""

    def __init__(self, model: Any, copied: Any = None) -> None:
        self._model = model
        self._copied = copied
        self._weights: dict[str, Tensor] = {}

    def follow(self) -> None:
        """Get ready for `refresh`, before the first step: from here on the reference has trainable weights of its own."""
        source = self._model if self._copied is None else self._copied
        names = {name for name, p in self._model.named_parameters() if p.requires_grad}
        found = {name: p.detach() for name, p in source.named_parameters() if name in names}
        self._weights = (
            found if self._copied is not None else {name: p.clone() for name, p in found.items()}
        )

    @torch.no_grad()
    def refresh(self, config: KLConfig, step: int) -> None:
        """After every `refresh_every` steps, go from where it is to the policy by `refresh_rate`. Of an adapter the matrices are moved,
        not their product."""
        if config.refresh_every is not None and step % config.refresh_every == 0:
            parameters = dict(self._model.named_parameters())
            for name, weight in self._weights.items():
                weight.lerp_(parameters[name].to(weight.dtype), config.refresh_rate)

    def models(self) -> list[Any]:
        """What it and the policy compute with: one model, or two."""
        return [self._model] if self._copied is None else [self._model, self._copied]

    def weights(self) -> dict[str, Tensor]:
        """What a refresh has moved, for checkpoints; empty if it does not follow the policy."""
        return self._weights

    @contextmanager
    def model(self) -> Iterator[Any]:
        """A model that computes as the reference does."""
        if self._copied is not None:
            yield self._copied
        elif not hasattr(self._model, "peft_config"):
            raise ConfigError(
                "this policy keeps no reference; load it with need_reference=True or set kl.beta=0"
            )
        elif self._weights:
            parameters = dict(self._model.named_parameters())
            own = {name: parameters[name].data for name in self._weights}
            try:
                for name, weight in self._weights.items():
                    parameters[name].data = weight
                yield self._model
            finally:
                for name, weight in own.items():
                    parameters[name].data = weight
        elif ADAPTER in self._model.peft_config:
            active = self._model.active_adapter
            self._model.set_adapter(ADAPTER)
            try:
                yield self._model
            finally:
                self._model.set_adapter(active)
        else:
            with self._model.disable_adapter():
                yield self._model
