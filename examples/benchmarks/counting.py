"""Count operations, and the calls that make the host wait, in what PyTorch computes.

An operation is one that PyTorch's dispatcher hands to a device: on a GPU at least one kernel that
the host has to launch. Views are not counted. Without a GPU, calls that would make the host wait
are counted by their names (see `Counted`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

VIEWS = {
    f"aten::{name}"
    for name in [
        "detach",
        "detach_",
        "alias",
        "_unsafe_view",
        "lift_fresh",
        "empty",
        "new_empty",
        "empty_like",
    ]
}
"""Operations that compute nothing and are not marked as views."""
WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "_unique", "equal")
"""Operations whose result the host waits for, by the start of their names."""


class Counted(TorchDispatchMode):
    """Count operations, and what would make the host wait if the tensors were on a GPU.

    The host waits where a number or a shape comes from the device (`item`, `bool`, `nonzero`,
    `unique`, `equal`, an index of booleans, `tolist`, `cpu`), and where a list of Python becomes a
    tensor of the device or an index, since the copy is not asynchronous, unless the code asks for
    it (`non_blocking`, from pinned memory).
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if torch.is_inference_mode_enabled() and _is_composite(function):
            with self:  # in this mode PyTorch shows the whole instead of its parts
                return function.decompose(*args, **(kwargs or {}))
        name = function.name().partition(".")[0]
        if not function.is_view and name not in VIEWS:
            self.operations[name] += 1
        bare = name.removeprefix("aten::")
        if bare.startswith(WAITS):
            self.waits[bare] += 1
        elif bare.startswith("index") and isinstance(args[1], Sequence):
            booleans = (torch.bool, torch.uint8)
            self.waits["index of booleans"] += any(
                index is not None and index.dtype in booleans for index in args[1]
            )
        return function(*args, **(kwargs or {}))

    def __sub__(self, other: Counted) -> tuple[int, int]:
        """Return by how many operations and waits this count is larger."""
        return (
            self.operations.total() - other.operations.total(),
            self.waits.total() - other.waits.total(),
        )


def _is_composite(function: Any) -> bool:
    """Return True if an operation is only a sequence of others."""
    return bool(
        torch._C._dispatch_has_kernel_for_dispatch_key(
            function.name(), torch._C.DispatchKey.CompositeImplicitAutograd
        )
    )


class _Functions(TorchFunctionMode):
    """Count calls that read from a device or copy to it, and are no operation on a CPU."""

    def __init__(self, waits: Counter[str]) -> None:
        super().__init__()
        self._waits = waits

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function in (Tensor.tolist, Tensor.cpu, Tensor.numpy):
            self._waits[function.__name__] += 1
        elif function in (torch.tensor, torch.as_tensor) and (kwargs or {}).get("device"):
            self._waits["tensor of a list"] += 1
        elif function is Tensor.__getitem__:
            indices = args[1] if isinstance(args[1], tuple) else (args[1],)
            self._waits["index of a list"] += sum(isinstance(index, list) for index in indices)
        return function(*args, **(kwargs or {}))


@contextmanager
def counting() -> Iterator[Counted]:
    """Count what is computed inside the context, in this thread."""
    counted = Counted()
    with _Functions(counted.waits), counted:
        yield counted
