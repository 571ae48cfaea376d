"""Remember which ways to compute a model agreed with it, so that the next run need not check again.

The check takes seconds, and its outcome depends on nothing but the model, the code and the device.
So it is stored in the user's cache under a name that is a digest of all of them. Such a file holds
nothing but which ways passed. One that is damaged, or that somebody else has written, can at worst
choose a way that does not suit the model: what it samples is compared with what is trained before
each run (see `train.run.sampling_check`).
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import inspect
import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
from torch import Tensor

from grpo_core.config.modelcache import cache_folder
from grpo_core.engine.compute.precision import can_be_float32
from grpo_core.engine.policy.ways import CheckedPolicy
from grpo_core.runs.atomic import write_whole
from grpo_core.runs.files import read_whole

Results: TypeAlias = dict[str, bool]
"""Whether each way that was tried agreed, by its name."""

MOST_BYTES, MOST_FILES = 4096, 200
"""A larger file is not read; of more files the oldest are removed."""
PACKAGES = ("grpo-core", "torch", "transformers", "peft")
"""Packages whose versions may decide the outcome."""


class PassedBefore:
    """Find and keep the results of checks.

    Args:
        reads: whether earlier results are believed.
    """

    def __init__(self, *, reads: bool = True) -> None:
        self._reads = reads
        self._file: Path | None = None

    def find(self, policy: CheckedPolicy, **settings: Any) -> Mapping[str, bool]:
        """Return the results for the same model, code and device; {} if there are none.

        Args:
            policy: the policy.
            settings: what else the outcome depends on.
        """
        try:
            folder = cache_folder() / "checks"
        except RuntimeError:  # there is no home folder, so no cache
            return {}
        if (digest := _digest(policy, settings)) is None:
            return {}
        self._file = folder / f"{digest}.json"
        try:
            results = json.loads(read_whole(self._file, most_bytes=MOST_BYTES))
        except (OSError, ValueError, RecursionError):
            return {}
        is_valid = isinstance(results, dict) and all(
            type(value) is bool for value in results.values()
        )
        return MappingProxyType(results) if self._reads and is_valid else {}

    def keep(self, results: Results) -> None:
        """Store the results of a check; where that is not possible, the next run checks again."""
        if self._file is None:
            return
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._file, json.dumps(results))
            files = sorted(self._file.parent.glob("*.json"), key=lambda file: file.lstat().st_mtime)
            for file in files[:-MOST_FILES]:
                file.unlink()


def _digest(policy: CheckedPolicy, settings: Mapping[str, Any]) -> str | None:
    """Return a digest of all that decides the outcome; None if some of it cannot be told."""
    model = policy.model
    if not can_be_float32(model):  # the noise of quantised weights is part of the outcome
        return None
    sources = _source_files(model)
    if sources is None:
        return None
    device = policy.device
    parts: list[Any] = [
        settings,
        type(policy).__qualname__,
        [(name, importlib.metadata.version(name)) for name in PACKAGES],
        (torch.version.cuda, torch.get_float32_matmul_precision()),
        (device.type, _hardware(device)),
        (policy.compute_dtype, policy.tuning, policy.check_texts()),
        model.config.to_dict(),
        model.config._attn_implementation,
        list(_identities(model)),
    ]
    digest = hashlib.sha256(repr(parts).encode())
    for file in [*_own_sources(), *sources]:
        digest.update(file)
    return digest.hexdigest()[:32]


def _hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return torch.backends.cpu.get_cpu_capability()


def _identities(model: Any) -> Iterator[tuple[Any, ...]]:
    """Yield name, shape, type and sum of each tensor.

    Of an adapter the numbers are left out: a fresh one has others with each seed, and adds nothing.
    """
    prefix = getattr(getattr(model, "base_model", None), "prefix", None)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        is_of_adapter = isinstance(prefix, str) and prefix in name
        yield name, tuple(tensor.shape), tensor.dtype, None if is_of_adapter else _sum(tensor)


def _sum(tensor: Tensor) -> int:
    """Return the sum of a tensor's bytes, eight at a time as one number."""
    flat = tensor.detach().reshape(-1).view(torch.uint8)
    if flat.data_ptr() % 8 or flat.storage_offset() % 8:
        flat = flat.clone()
    whole = len(flat) // 8 * 8
    return int(flat[:whole].view(torch.int64).sum()) + int(flat[whole:].sum())


def _source_files(model: Any) -> list[bytes] | None:
    """Return the source files of the model's classes, torch's own apart; None if one has none."""
    modules = {type(module).__module__: type(module) for module in model.modules()}
    sources = []
    for name in sorted(modules):
        if name.startswith(("torch.", "peft.")):
            continue
        try:
            sources.append(Path(inspect.getsourcefile(modules[name]) or "").read_bytes())
        except (OSError, TypeError):  # a class of a notebook
            return None
    return sources


@cache
def _own_sources() -> tuple[bytes, ...]:
    """Return our code that computes, which may differ where the version does not."""
    engine = Path(__file__).parents[1]
    return tuple(file.read_bytes() for file in sorted(engine.rglob("*.py")))
