"""Choose the device and precision of a model; "auto" takes what the hardware does well."""

from __future__ import annotations

import functools
import os
import time

import psutil
import torch

from grpo_core.engine.models.control_groups import free_in_groups
from grpo_core.protocol.errors import ConfigError, UnknownNameError

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
DEVICES = ("auto", "cpu", "cuda", "mps")
CPU_BFLOAT16_UNITS = ("amx_bf16", "avx512_bf16", "sve_bf16", "bf16")
"""Names of CPU features with bfloat16 units: x86 server, x86, ARM server, ARM."""
PRODUCTS = 8
"""How many products of each type are timed; the fastest counts, which other work does not slow."""


def pick_device(name: str = "auto") -> torch.device:
    """Return the named device; "auto" takes CUDA, then Apple's GPU, then the CPU.

    With several processes on one machine, each takes the CUDA device of its local rank.

    Raises:
        UnknownNameError: there is no device of that name.
        ConfigError: the device is not available, or this machine has fewer than processes.
    """
    if name not in DEVICES:
        raise UnknownNameError("device", name, DEVICES, hint=f"known: {', '.join(DEVICES)}")
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))  # set with several processes
    available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    chosen = (
        next(device for device, is_there in available.items() if is_there)
        if name == "auto"
        else name
    )
    if available[chosen]:
        _refuse_shared(chosen)
        return (
            torch.device(chosen, local_rank)
            if chosen == "cuda" and local_rank
            else torch.device(chosen)
        )
    if name == "cuda" and torch.version.cuda is None and torch.version.hip is None:
        raise ConfigError(
            f"device 'cuda' was asked for, but torch {torch.__version__} is a build without CUDA; "
            "install another build, or use 'auto'"
        )
    raise ConfigError(
        f"device {name!r} was asked for, but torch {torch.__version__} finds none on this "
        "machine; use 'auto'"
    )


def _refuse_shared(kind: str) -> None:
    """Raise ConfigError if the processes on this machine are more than its devices of a kind."""
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    count = torch.cuda.device_count() if kind == "cuda" else 1
    if kind != "cpu" and processes > count:
        raise ConfigError(
            f"{processes} processes need a device each, and torch finds {count} of kind {kind!r} "
            f"on this machine; use --processes {count}, or model.device=cpu"
        )


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the named dtype.

    "auto" is bfloat16 where `device` multiplies matrices faster in it, else float32.

    Raises:
        UnknownNameError: there is no dtype of that name.
        ConfigError: the device cannot train in that dtype.
    """
    if name == "auto":
        return torch.bfloat16 if _prefers_bfloat16(device) else torch.float32
    if name not in DTYPES:
        raise UnknownNameError("dtype", name, DTYPES, hint=f"known: auto, {', '.join(DTYPES)}")
    if name == "float16" and device.type == "cpu":
        raise ConfigError(
            "dtype 'float16' overflows in training on a CPU and is slow there; use 'auto', "
            "'bfloat16' or 'float32'"
        )
    if name == "float64" and device.type == "mps":
        raise ConfigError(
            "dtype 'float64' does not exist on device 'mps'; use 'float32', or device 'cpu'"
        )
    return DTYPES[name]


def used_memory(device: torch.device) -> int:
    """Return the bytes of tensors on an accelerator; on a CPU, those of the whole process."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    if device.type == "mps":
        return torch.mps.current_allocated_memory()
    return int(psutil.Process().memory_info().rss)


def free_memory(device: torch.device) -> int:
    """Return the bytes that this process may use, including what it uses now.

    On a CPU, the limits of the process's control groups count, and what is free is divided among
    the processes.
    """
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused + used_memory(device)
    if device.type == "mps":
        return torch.mps.recommended_max_memory()
    free = min([int(psutil.virtual_memory().available), *free_in_groups()])
    return free // int(os.environ.get("LOCAL_WORLD_SIZE", "1")) + used_memory(device)


def described() -> str:
    """Return in words what "auto" means on this machine."""
    device = pick_device()
    dtype = str(pick_dtype("auto", device)).removeprefix("torch.")
    units = "" if dtype == "bfloat16" else " (it is no faster in bfloat16)"
    if device.type != "cuda":
        return f"{device.type}; computes in {dtype}{units}"
    free, total = torch.cuda.mem_get_info(device)
    return (
        f"{torch.cuda.get_device_name(device)}; computes in {dtype}{units}; "
        f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free"
    )


def _prefers_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "mps":
        return bool(torch.backends.mps.is_macos_or_newer(14, 0))
    # An older torch cannot report the units; none is the safe assumption.
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    units = any(capabilities.get(unit, False) for unit in CPU_BFLOAT16_UNITS)
    return units and _multiplies_faster(torch.bfloat16, torch.float32)


@functools.cache
def _multiplies_faster(dtype: torch.dtype, other: torch.dtype) -> bool:
    """Return whether this CPU multiplies matrices faster in one type than in another, as measured.

    Names of units do not tell: a CPU with AVX512-BF16 and no AMX was seen to need twice the time in
    bfloat16 that it needs in float32.
    """
    seconds = [(product_seconds(dtype), product_seconds(other)) for _ in range(PRODUCTS)]
    return min(mine for mine, _ in seconds) < min(others for _, others in seconds)


def product_seconds(dtype: torch.dtype) -> float:
    """Return how long a product of matrices, as in a layer of a small model, takes on the CPU."""
    input_BD, weight_FD = torch.ones(512, 512, dtype=dtype), torch.ones(1024, 512, dtype=dtype)
    start = time.perf_counter()
    torch.nn.functional.linear(input_BD, weight_FD)
    return time.perf_counter() - start
