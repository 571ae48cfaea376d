"""Count what a model's config asks for, and refuse what its files do not hold or memory cannot.

A model is built without memory for this, on torch's device "meta".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from grpo_core.config.config import RunConfig
from grpo_core.config.gguf_files import gguf_header
from grpo_core.config.model_files import stored_weights
from grpo_core.engine.models import quantized
from grpo_core.engine.models.device import free_memory
from grpo_core.engine.models.loading import loading_errors
from grpo_core.engine.models.quiet import quiet_loading
from grpo_core.engine.models.source import (
    CONFIG,
    ModelSource,
    auto_class,
    description,
    is_masked,
    load_config,
    local_folder,
)
from grpo_core.protocol.errors import ConfigError, UserError

WEIGHTS_PER_BYTE = 8
"""The most weights that a byte of a file holds, in any format."""
SLACK = 2**24
"""How many elements more than expected do no harm."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Count what a config describes."""

    parameters: int
    linear: int
    """Those of linear layers, which a quantisation shrinks."""
    buffer_bytes: int
    """Bytes of the tensors that are computed and not stored."""


def described_sizes(source: ModelSource, *, masked: bool) -> Sizes:
    """Return the sizes of the model that a config describes; no weights are read.

    Raises:
        UserError: no model can be built of it.
    """
    status = (Path(local_folder(source)) / (source.gguf_file or CONFIG)).stat()
    return _described_sizes(source, masked, (status.st_mtime_ns, status.st_size))


def model_of_config(source: ModelSource, *, masked: bool) -> Any:
    """Return the model that a config describes, on torch's device "meta".

    Raises:
        UserError: no model can be built of it.
    """
    config = load_config(source)
    with (
        loading_errors(source.name, description(masked=masked)),
        quiet_loading(),
        torch.device("meta"),
    ):
        return auto_class(masked=masked).from_config(
            config, trust_remote_code=source.trust_remote_code
        )


@lru_cache(maxsize=2)
def _described_sizes(source: ModelSource, masked: bool, state: tuple[int, int]) -> Sizes:
    """Return the sizes; the state of the file tells when to count again."""
    model = model_of_config(source, masked=masked)
    return Sizes(
        parameters=sum(p.numel() for p in model.parameters()),
        linear=sum(
            module.weight.numel()
            for module in model.modules()
            if isinstance(module, torch.nn.Linear) and module is not model.get_output_embeddings()
        ),
        buffer_bytes=sum(buffer.nbytes for buffer in model.buffers()),
    )


def check_stored(source: ModelSource, *, masked: bool) -> None:
    """Refuse a model whose files cannot be those of its config, before memory is taken for it.

    Raises:
        UserError: the files hold far less or far more than the config describes.
    """
    folder = Path(local_folder(source))
    if source.gguf_file is None:
        stored = stored_weights(folder)
    else:
        stored = gguf_header(folder / source.gguf_file)
    if stored is None:
        return
    described = folder / (source.gguf_file or CONFIG)
    sizes = described_sizes(source, masked=masked)
    most = WEIGHTS_PER_BYTE * stored.size_bytes + SLACK
    if sizes.parameters > most or sizes.buffer_bytes > SLACK * 16 + most:
        raise UserError(
            f"{described} describes a model of {sizes.parameters:,} weights and "
            f"{sizes.buffer_bytes:,} bytes beside them, and its files hold {stored.size_bytes:,} "
            "bytes; correct the config, or get the files again"
        )
    if stored.largest > sizes.parameters + SLACK:
        raise UserError(
            f"{described} describes a model of {sizes.parameters:,} weights, and its files hold a "
            f"tensor {stored.largest_name!r:.100} of {stored.largest:,}; get the files again"
        )


def refuse_what_cannot_fit(
    config: RunConfig, source: ModelSource, dtype: torch.dtype, device: torch.device
) -> None:
    """Raise ConfigError if the weights alone exceed the free memory.

    The check needs the config only; no weights are read.
    """
    if config.trainer.memory_check != "refuse" or source.gguf_file is not None:
        return
    sizes = described_sizes(source, masked=is_masked(source, config.model.kind))
    weight_bytes = (
        sizes.parameters - sizes.linear
    ) * dtype.itemsize + sizes.linear * quantized.BYTES.get(
        config.model.quantization, dtype.itemsize
    )
    weights_device = torch.device("cpu") if config.model.offload else device
    free_bytes = free_memory(weights_device)
    if weight_bytes > free_bytes:
        raise ConfigError(
            f"the weights of {source.name!r} alone ({sizes.parameters:,} parameters) take "
            f"{weight_bytes / 2**30:.1f} GiB of memory, but only {free_bytes / 2**30:.1f} GiB are "
            f"free on {weights_device}; take a smaller model, model.dtype=bfloat16 or "
            "model.quantization=4bit (trainer.memory_check=warn tries it anyway)"
        )
