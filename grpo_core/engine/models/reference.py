"""Provide the reference policy of the KL: frozen, or following the policy at a distance."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grpo_core.config.settings import KLConfig
from grpo_core.engine.models.swapped import swapped
from grpo_core.protocol.errors import ConfigError

ADAPTER = "reference"
"""Name of the frozen copy of an adapter that the model brought."""


@dataclass(frozen=True, slots=True)
class ReferenceStates:
    """Hold what the reference computes for a micro-batch, before its head."""

    hidden_KH: Tensor | None
    """Last hidden states of its K predictions; None where the model computes its logits itself.
    All logits of a batch would not fit, so each comparison then makes a pass of its own."""


class Reference:
    """Provides the reference policy that a KL is measured against.

    Args:
        model: the policy's model. Unless there is a copy, it also serves as the reference: with its
            adapter switched off, with a frozen adapter in its place, or, once the reference follows
            the policy, with other weights in the adapter.
        copied: a whole frozen model, for full fine-tuning.
    """

    def __init__(self, model: Any, copied: Any = None) -> None:
        self._model = model
        self._copied = copied
        self._weights: dict[str, Tensor] = {}

    def follow(self) -> None:
        """Prepare for `refresh`, before the first step.

        From here on the reference has its own copy of the trainable weights.
        """
        names = {
            name for name, parameter in self._model.named_parameters() if parameter.requires_grad
        }
        self._weights = {
            name: parameter.detach().clone() if self._copied is None else parameter.detach()
            for name, parameter in self.models()[-1].named_parameters()
            if name in names
        }

    @torch.no_grad()
    def refresh(self, config: KLConfig, step: int) -> None:
        """Move towards the policy by `refresh_rate`, after every `refresh_every` steps.

        Of an adapter the matrices are moved, not their product.
        """
        if config.refresh_every is not None and step % config.refresh_every == 0:
            parameters = dict(self._model.named_parameters())
            for name, weight in self._weights.items():
                weight.lerp_(parameters[name].to(weight.dtype), config.refresh_rate)

    def models(self) -> list[Any]:
        """Return the models that the reference and the policy compute with: one, or two."""
        return [self._model] if self._copied is None else [self._model, self._copied]

    def weights(self) -> dict[str, Tensor]:
        """Return the weights that a refresh moves, for checkpoints.

        The dict is empty if the reference does not follow the policy.
        """
        return self._weights

    @contextmanager
    def model(self) -> Iterator[Any]:
        """Yield a model that computes as the reference does."""
        if self._copied is not None:
            yield self._copied
        elif not hasattr(self._model, "peft_config"):
            raise ConfigError(
                "this policy keeps no reference; load it with need_reference=True or set kl.beta=0"
            )
        elif self._weights:
            parameters = dict(self._model.named_parameters())
            with swapped("data", [(parameters[name], w) for name, w in self._weights.items()]):
                yield self._model
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
