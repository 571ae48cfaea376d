"""Keep frozen weights in CPU memory and move them to the accelerator while their module computes.

This uses accelerate's hooks. accelerate's own `cpu_offload` takes a whole model, and would take the
adapter that is trained, too. In the backward pass a weight is needed again: recomputing a layer
(see `recompute`) fetches its weights again, where they would otherwise all stay until then.
"""

from __future__ import annotations

from typing import Any

import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module


def offload(model: Any, device: torch.device) -> None:
    """Move `model`, which is on the CPU, to `device`, except for its frozen weights."""
    for module in model.modules():
        parameters = dict(module.named_parameters(recurse=False))
        if parameters and not any(parameter.requires_grad for parameter in parameters.values()):
            add_hook_to_module(
                module,
                AlignDevicesHook(
                    device,
                    offload=True,
                    weights_map={name: parameter.data for name, parameter in parameters.items()},
                ),
            )
        for parameter in parameters.values():
            if parameter.requires_grad:
                parameter.data = parameter.data.to(device)
        for name, buffer in module.named_buffers(recurse=False):
            module.register_buffer(
                name, buffer.to(device), persistent=name not in module._non_persistent_buffers_set
            )
