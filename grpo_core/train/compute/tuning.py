"""Set what depends on the device: what was measured on two CPU cores does not hold on a GPU."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Tuning:
    """Say how a device computes fastest; nothing here changes a result by more than rounding."""

    stacks: bool = False
    """Compute adapted layers that get the same input as one product (see `stacked`), where the
    weights are in half precision. A GPU waits for each operation to be launched; a CPU has copies
    of its own (see `prepack`)."""
    operations_per_byte: float | None = None
    """Operations of a product that take as long as reading a byte; None: `prefix.READ` holds."""
    block_rows: int | None = None
    """Rows of a block of attention; None: `attention.ROWS`."""


CPU = Tuning()
"""As measured on two cores."""
GPU = Tuning(stacks=True, operations_per_byte=150.0, block_rows=1024)
"""By arithmetic and not measured: half of what an H100 can compute in bfloat16 while it reads a
byte, and blocks that hold most trees whole, since each block is an operation."""


def tuning_of(device: torch.device) -> Tuning:
    """Return the tuning of a device."""
    return GPU if device.type == "cuda" else CPU
