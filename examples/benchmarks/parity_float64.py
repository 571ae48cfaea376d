"""Let transformers' Llama compute in float64, in both processes of trl_parity.py.

As both import it, it needs nothing but torch and transformers.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers.models.llama import modeling_llama

Weights = dict[str, Tensor]
"""Tensors by the names of the parameters."""


def compute_in_float64() -> None:
    """Replace what Llama computes in float32 whatever the type of its weights: norms and angles."""
    modeling_llama.LlamaRMSNorm.forward = _normalised
    modeling_llama.LlamaRotaryEmbedding.forward = _angles


def set_weights(model: torch.nn.Module, weights: Weights) -> None:
    """Set the parameters of a model."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])


def weights_of(model: torch.nn.Module) -> Weights:
    """Return a copy of the parameters of a model."""
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def gradients_of(model: torch.nn.Module) -> Weights:
    """Return a copy of the gradients of a model; 0 where there is none."""
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad.detach().clone()
        for name, p in model.named_parameters()
    }


def _normalised(self: modeling_llama.LlamaRMSNorm, hidden_states: Tensor) -> Tensor:
    variance = hidden_states.pow(2).mean(-1, keepdim=True)
    scaled: Tensor = self.weight * hidden_states * torch.rsqrt(variance + self.variance_epsilon)
    return scaled


def _angles(
    self: modeling_llama.LlamaRotaryEmbedding, x: Tensor, position_ids: Tensor
) -> tuple[Tensor, Tensor]:
    angles = position_ids[..., None].double() * self.inv_freq.double()
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().to(x.dtype), angles.sin().to(x.dtype)
