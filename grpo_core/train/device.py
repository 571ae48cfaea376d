"""Where a model computes and in which precision: "auto" is what the hardware does well."""

from __future__ import annotations

import ctypes
import os
import platform
from pathlib import Path

import psutil
import torch

from grpo_core.errors import ConfigError, UnknownNameError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
M_MMAP_THRESHOLD, M_ARENA_MAX = -3, -8  # malloc.h
PRIMITIVES = "128"
"""Compiled operations that oneDNN keeps, one for each shape, most of 0.3 to 0.5 MB. Its own limit of 1024 is reached after many steps."""
DEVICES = ("auto", "cpu", "cuda", "mps")
CPU_BFLOAT16_UNITS = ("amx_bf16", "avx512_bf16", "sve_bf16", "bf16")  # x86 server, x86, ARM server, ARM


def pick_device(name: str = "auto") -> torch.device:
    """The named device; "auto" takes CUDA, then Apple's GPU, then the CPU."""
    if name not in DEVICES:
        raise UnknownNameError("device", name, DEVICES, hint=f"known: {', '.join(DEVICES)}")
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))  # of several processes on one machine
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    found = next(device for device, there in available.items() if there) if name == "auto" else name
    if available[found]:
        return torch.device(found, local_rank) if found == "cuda" and local_rank else torch.device(found)
    if name == "cuda" and torch.version.cuda is None and torch.version.hip is None:
        raise ConfigError(
            f"device 'cuda' was asked for, but torch {torch.__version__} is a build without it; install another, or use 'auto'"
        )
    raise ConfigError(f"device {name!r} was asked for, but torch {torch.__version__} finds none on this machine; use 'auto'")


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """The named dtype; "auto" is bfloat16 where `device` has units for it (without them it is slower than float32), else float32."""
    if name == "auto":
        return torch.bfloat16 if _has_bfloat16(device) else torch.float32
    if name not in DTYPES:
        raise UnknownNameError("dtype", name, DTYPES, hint=f"known: auto, {', '.join(DTYPES)}")
    if name == "float16" and device.type == "cpu":
        raise ConfigError("dtype 'float16' overflows in training on a CPU and is slow there; use 'auto', 'bfloat16' or 'float32'")
    if name == "float64" and device.type == "mps":
        raise ConfigError("dtype 'float64' does not exist on device 'mps'; use 'float32', or device 'cpu'")
    return DTYPES[name]


def used_memory(device: torch.device) -> int:
    """Bytes of tensors on an accelerator; on a CPU those of the whole process."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    if device.type == "mps":
        return torch.mps.current_allocated_memory()
    return int(psutil.Process().memory_info().rss)


def free_memory(device: torch.device) -> int:
    """Bytes that this process may have, with what it has: of a container only what it was given, on a CPU a part for each process."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused + used_memory(device)
    if device.type == "mps":
        return torch.mps.recommended_max_memory()
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return min([int(psutil.virtual_memory().available), *_left_in_cgroup()]) // processes + used_memory(device)


def share_heap(device: torch.device) -> None:
    """Before a model computes on a CPU: one heap for all threads, where what one of them freed another can use (glibc gives each its own,
    which was 0.5 GB of 2.6), and a bound to what oneDNN keeps, so that memory does not grow from step to step. Environment variables of
    the user hold."""
    if device.type == "cpu":
        os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", PRIMITIVES)  # read at the first operation
        if "MALLOC_ARENA_MAX" not in os.environ:
            _mallopt(M_ARENA_MAX, 1)


def empty_heap(device: torch.device, *, above: float = 0.0) -> None:
    """On a CPU, if the process has more than so many bytes: free memory of the heap goes back to the system, also the holes.

    For a change of work that needs pieces of other sizes, which would otherwise come on top. Done in every step it would cost 15 % of a
    short one, since new pages are slow.
    """
    if device.type == "cpu" and platform.libc_ver()[0] == "glibc" and used_memory(device) > above:
        ctypes.CDLL(None).malloc_trim(0)


def give_back_freed_memory() -> None:
    """From here on tensors that are freed on a CPU go back to the system, where the heap of glibc would keep those of up to 32 MB: with
    layers that are recomputed that was more than half of the memory. New ones cost more time, since they come as empty pages."""
    _mallopt(M_MMAP_THRESHOLD, 2**20)


def _mallopt(option: int, value: int) -> None:
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).mallopt(option, value)


def _left_in_cgroup() -> list[int]:
    """What the limit of this process's control group (v2) leaves; [] without one. Pages of files give way."""
    folder = Path("/sys/fs/cgroup")
    try:
        most, now = (folder / "memory.max").read_text().strip(), int((folder / "memory.current").read_text())
        counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except OSError:  # no such control group here
        return []
    return [] if most == "max" else [int(most) - now + int(counts.get("inactive_file", 0))]


def described() -> str:
    """What "auto" means on this machine, in words."""
    device = pick_device()
    dtype = str(pick_dtype("auto", device)).removeprefix("torch.")
    units = "" if dtype == "bfloat16" else " (it has no units for bfloat16)"
    if device.type != "cuda":
        return f"{device.type}; computes in {dtype}{units}"
    free, total = torch.cuda.mem_get_info(device)
    memory = f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free"
    return f"{torch.cuda.get_device_name(device)}; computes in {dtype}{units}; {memory}"


def _has_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "mps":
        return bool(torch.backends.mps.is_macos_or_newer(14, 0))
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}  # older torch: the safe choice
    return any(capabilities.get(unit, False) for unit in CPU_BFLOAT16_UNITS)
