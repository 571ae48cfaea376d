"""Folders through which weights are handed over to the server, in memory where there is room."""

from __future__ import annotations

import atexit
import os
import platform
import shutil
import tempfile
import zlib
from pathlib import Path

import psutil

from grpo_core.protocol.sampler import ModelToSample, Weights

SHARED_MEMORY = Path("/dev/shm")
"""A folder in memory, on Linux."""
_ADAPTER_BYTES = 256 * 2**20
"""Room that an adapter and its successor are expected to need."""


class Handover:
    """A folder that holds each version of the weights in a folder of its own.

    Args:
        parent: where the folder is made; "": chosen by the room that the model needs.
        model: the model whose weights are handed over.
    """

    def __init__(self, parent: str, model: ModelToSample) -> None:
        self._root = temporary_folder(Path(parent).absolute() if parent else _roomy(model))
        self._count = 0

    async def save(self, weights: Weights, version: int) -> Path:
        """Write the weights into a new folder and return it; its name was never used before."""
        self._count += 1
        folder = self._root / f"policy-{version}-{self._count}"
        folder.mkdir()
        await weights.save(folder)
        return folder

    def close(self) -> None:
        """Remove all versions."""
        remove(self._root)


def temporary_folder(parent: Path) -> Path:
    """Return a new folder in `parent`, after removing those of processes that were killed."""
    # Containers may share the parent but not the numbers of processes.
    prefix = f"grpo-vllm-{zlib.crc32(platform.node().encode()):08x}-"
    for folder in parent.glob(f"{prefix}*"):
        pid = folder.name.removeprefix(prefix).partition("-")[0]
        if pid.isdecimal() and not psutil.pid_exists(int(pid)):
            remove(folder)
    folder = Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=parent))
    atexit.register(remove, folder)
    return folder


def remove(folder: Path) -> None:
    """Remove a folder with all that is in it."""
    shutil.rmtree(folder, ignore_errors=True)


def _roomy(model: ModelToSample) -> Path:
    """Return shared memory if two versions of the weights fit into it."""
    needed = _ADAPTER_BYTES
    if model.adapter_rank is None:  # the trainer's weights may be twice as wide as those on disk
        needed = 4 * sum(file.stat().st_size for file in model.path.glob("*.safetensors"))
    is_roomy = SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).free > needed
    return SHARED_MEMORY if is_roomy else Path(tempfile.gettempdir())
