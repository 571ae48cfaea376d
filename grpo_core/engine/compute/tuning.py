"""Set sizes and costs by the device: what two CPU cores compute fastest, a GPU does not.

None of it changes a result by more than rounding, and each size gives way to a setting that the
user gives. The figures of a CPU were measured on two cores. Of those of a GPU some were measured on
an H200 with a model of 0.5 billion weights, as their comments say. The others follow from the data
sheet of an H100 (989 TFLOP/s in bfloat16, 3.35 TB/s, 80 GB) and from what others take.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from grpo_core.config.config import RunConfig
from grpo_core.config.sizes import DEVICE_SETTINGS

_MB, _GB = 2**20, 2**30


@dataclass(frozen=True, slots=True)
class Tuning:
    """Hold what depends on the device; the defaults are those of a CPU."""

    max_rows: int = 256
    """Default of sampling.max_rows: completions."""
    kv_mb: int = 4096
    """Default of sampling.kv_mb: MB of keys and values."""
    micro_batch_tokens: int = 2048
    """Default of trainer.micro_batch_tokens: tokens."""
    logits_mb: int = 64
    """Default of trainer.logits_mb: MB of logits."""
    joined_products: bool = False
    """Compute as few products as possible (see `stacked.Stacks`)."""
    cuda_graphs: bool = False
    """Default of sampling.cuda_graphs."""
    wide_evaluations: bool = False
    """Sample as many rollouts at a time in evaluations as can be decoded together. On a CPU few at
    a time are as fast, and progress shows more often."""
    operations_per_byte: float | None = None
    """Operations of a product that take as long as reading a byte; None: `prefix.READ` holds."""
    block_rows: int | None = None
    """Rows of a block of attention; None: `attention.ROWS`."""


CPU = Tuning()
"""The tuning of a CPU, and of any device that has none of its own."""

LARGE = 70 * _GB
"""Bytes of memory from which a GPU is large: an H100, or an A100 with 80 GB."""
FEW_WEIGHTS = 1e9
"""Up to this many weights, launching its operations takes most of the time of a micro-batch."""


def gpu_tuning(memory: int, *, weights: int) -> Tuning:
    """Return the tuning of a CUDA device.

    Args:
        memory: bytes of memory that the device has in all.
        weights: number of weights of the model, without an adapter.
    """
    large = memory >= LARGE
    return Tuning(
        # vLLM's max_num_seqs: 1,024 on a GPU of at least 70 GiB, 256 on others.
        max_rows=1024 if large else 256,
        # A quarter, so that weights in half of the memory leave another quarter to what draws.
        kv_mb=memory // (4 * _MB),
        # The host launches about 5,000 operations for each pass. Updates of 64 completions of 256
        # tokens took 2.0 s with 2,048 tokens a pass, 0.8 s with 8,192 and 0.46 s with 32,768, and
        # 10, 16 and 31 GB in all. A larger model keeps the GPU busy with fewer tokens.
        micro_batch_tokens=32768 if large and weights <= FEW_WEIGHTS else 2048,
        # An 80th: 128 MB of 10 GB, as in the recipe gpu-10gb, and 1 GB of 80. Each chunk of logits
        # is a series of operations of its own, so there should be few of them.
        logits_mb=max(CPU.logits_mb, memory // (80 * _MB)),
        # One operation less for each stack of layers in a step of decoding.
        joined_products=True,
        # A step took 4.5 ms instead of 67 with 64 completions, and 5.4 instead of 69 with 128.
        cuda_graphs=True,
        wide_evaluations=True,
        # Half of what an H100 can compute while it reads a byte (989 / 3.35 = 295), since products
        # rarely reach the speed of the data sheet.
        operations_per_byte=150.0,
        # Each block is a series of operations; most trees fit into a block of this size.
        block_rows=1024,
    )


def tuning_of(device: torch.device, *, weights: int) -> Tuning:
    """Return the tuning of a device for a model of `weights` weights."""
    if device.type != "cuda":
        return CPU
    return gpu_tuning(torch.cuda.get_device_properties(device).total_memory, weights=weights)


def with_sizes(config: RunConfig, tuning: Tuning) -> tuple[RunConfig, str]:
    """Return the config with the sizes of the device where nobody has set them.

    Args:
        config: the configuration of a run.
        tuning: that of its policy.

    Returns:
        The complete config, and which sizes it took that are not those of a CPU; "" for none.
    """
    taken: dict[str, int] = {}
    for key in DEVICE_SETTINGS:
        name, _, size = key.partition(".")
        section = getattr(config, name)
        if getattr(section, size) is None:
            taken[key] = getattr(tuning, size)
            changed = section.model_copy(update={size: taken[key]})
            config = config.model_copy(update={name: changed})
    values = " and ".join(
        f"{key}={str(number).lower()}"
        for key, number in taken.items()
        if number != getattr(CPU, key.partition(".")[2])
    )
    return config, f"{values}: the device's default" if values else ""
