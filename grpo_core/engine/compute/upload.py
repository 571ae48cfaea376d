"""Copy numbers from the host to the device without waiting for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


def upload(
    values: Sequence[object] | np.ndarray[Any, Any],
    device: torch.device,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Return (nested) lists of numbers, or an array, as a tensor on `device`.

    A copy from ordinary memory to a GPU waits until everything before it is computed. One from
    pinned memory, which the GPU reads by itself, takes its place behind what is computed.
    """
    tensor = torch.tensor(values, dtype=dtype)
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
