"""Shard weights over several processes.

Each process keeps its part of the weights, of their gradients and of the optimizer's state. This is
torch's FSDP (`fully_shard`; Zhao et al., arXiv 2304.11277): the weights of a layer are gathered
while it computes. Every forward pass is then a collective, so all processes have to make the same
number of passes, except where the weights are `whole`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor


def shard(model: Any) -> None:
    """Shard `model`, of which each process has a full copy, over all processes.

    Each layer is a unit of its own, and the remaining weights are one more.
    """
    mesh = init_device_mesh(next(model.parameters()).device.type, (dist.get_world_size(),))
    layers = set(getattr(model, "_no_split_modules", None) or ())
    for module in list(model.modules()):
        if type(module).__name__ in layers:
            fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)


@contextmanager
def whole(model: Any) -> Iterator[None]:
    """Gather all weights in every process for the duration of the context.

    Processes may then make different numbers of forward passes. All processes have to enter it.
    """
    parts = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for part in parts:
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()
    try:
        yield
    finally:
        for part in parts:
            part.set_reshard_after_forward(True, recurse=False)
            part.reshard()


def gather_full(value: Any) -> Any:
    """Return `value` with every sharded tensor in it replaced by the full one.

    All processes have to call it.
    """
    if isinstance(value, DTensor):
        return value.full_tensor()
    if isinstance(value, dict):
        return {key: gather_full(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(gather_full(item) for item in value)
    return value


def like(parameter: Tensor, tensor: Tensor) -> Tensor:
    """Return this process's part of a full tensor if `parameter` is sharded, else the tensor."""
    if not isinstance(parameter, DTensor):
        return tensor
    mesh = parameter.device_mesh
    return distribute_tensor(
        tensor.to(mesh.device_type), mesh, parameter.placements, src_data_rank=None
    )


def optimizer_state_like(parameters: Sequence[Tensor], state: dict[str, Any]) -> dict[str, Any]:
    """Return an optimizer's state dict with its full tensors sharded like the parameters.

    Args:
        parameters: the parameters, sharded or not, in the optimizer's order.
        state: a state dict with full tensors.
    """
    sharded = {
        i: {
            name: like(parameters[i], value)
            if isinstance(value, torch.Tensor) and value.shape == parameters[i].shape
            else value
            for name, value in values.items()
        }
        for i, values in state["state"].items()
    }
    return {**state, "state": sharded}
