"""Frozen weights that rest in the CPU's memory and are on the accelerator while their module computes, by accelerate's hooks.

accelerate's own `cpu_offload` takes a whole model, and would take the adapter that is trained, too. In the backward pass a weight is
needed again: recomputing a layer (see `recompute`) brings its weights anew, where they would otherwise all stay until then.
"""

from __future__ import annotations

from typing import Any

import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module


def offload(model: Any, device: torch.device) -> None:
    """Take `model`, which is on the CPU, to `device` but for its frozen weights."""
    for module in model.modules():
        own = dict(module.named_parameters(recurse=False))
        if own and not any(parameter.requires_grad for parameter in own.values()):
            resting = {name: parameter.data for name, parameter in own.items()}
            add_hook_to_module(module, AlignDevicesHook(device, offload=True, weights_map=resting))
        for parameter in own.values():
            if parameter.requires_grad:
                parameter.data = parameter.data.to(device)
        for name, buffer in module.named_buffers(recurse=False):
            module.register_buffer(
                name, buffer.to(device), persistent=name not in module._non_persistent_buffers_set
            )
