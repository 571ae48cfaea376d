"""Shard weights over several processes.

Each process keeps its part of the weights, of their gradients and of the optimizer's state. This is
torch's FSDP (`fully_shard`; Zhao et al., arXiv 2304.11277): the weights of a layer are gathered
while it computes. Every forward pass is then a collective, so all processes have to make the same
number of passes, except where the weights are `whole`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

T = TypeVar("T")
_METHOD = "compute_gathered"
"""Name of the method of a sharded model that counts as a forward pass of its own."""


def shard(model: Any) -> None:
    """Shard `model`, of which each process has a full copy, over all processes.

    Each layer is a unit of its own, and the remaining weights are one more.
    """
    mesh = init_device_mesh(next(model.parameters()).device.type, (dist.get_world_size(),))
    for layer in units(model):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    setattr(model, _METHOD, lambda compute: compute())
    register_fsdp_forward_method(model, _METHOD)


def units(model: Any) -> list[Any]:
    """Return the layers of `model` whose weights are gathered one layer at a time."""
    names = set(getattr(model, "_no_split_modules", None) or ())
    return [module for module in model.modules() if type(module).__name__ in names]


def gathered(model: Any, compute: Callable[[], T]) -> T:
    """Return `compute()`, which makes forward passes of `model` and uses its head besides.

    The weights outside the layers, those of the head among them, are gathered throughout, and
    again as soon as the backward pass reaches a tensor of the result. Not for use inside `whole`.
    """
    model.set_reshard_after_forward(False, recurse=False)  # by the passes within `compute`

    def compute_and_reshard() -> T:
        try:
            return compute()
        finally:
            model.set_reshard_after_forward(True, recurse=False)

    return getattr(model, _METHOD)(compute_and_reshard)  # type: ignore[no-any-return]


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
