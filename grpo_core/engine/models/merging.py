"""Export a finished run as a model that needs neither peft nor its base model."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch

from grpo_core.engine.models.adapter_files import load_adapter
from grpo_core.engine.models.device import DTYPES
from grpo_core.engine.models.disk import as_os_error
from grpo_core.engine.models.load import load_model, resolve
from grpo_core.engine.models.tokenizer import load_tokenizer
from grpo_core.runs.atomic import whole_folder, write_whole
from grpo_core.runs.lines import writing


def save_merged(final: Path, out: Path, *, dtype: str, card: str) -> float | None:
    """Write the adapter in `final` merged into its base model, with the tokenizer, to `out`.

    The sum is computed in float32 and rounded once.

    Args:
        dtype: the name of the type of the weights in `out`.
        card: the model card of `out`.

    Returns:
        What rounding changed, as a share of what training changed; see `rounding_share`.
    """
    model, tokenizer, share = load_merged(final, dtype=dtype)
    # Weights are only stored here, so float16 is allowed although the device is a CPU.
    model = model.to(DTYPES[dtype])
    with writing(out, then="export again"), as_os_error(), whole_folder(out) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        write_whole(folder / "README.md", card)
    return share


def load_merged(final: Path, *, dtype: str) -> tuple[Any, Any, float | None]:
    """Return the model in `final` in float32, with its adapter merged in, and its tokenizer.

    Args:
        final: the folder with the adapter or the model.
        dtype: the name of the type in which it will be stored.

    Returns:
        Model, tokenizer, and what rounding to `dtype` will change; see `rounding_share`.
    """
    source, device = resolve(str(final)), torch.device("cpu")
    model: Any = load_model(source, dtype=torch.float32, device=device)
    share = None
    if source.adapter_path is not None:
        model = load_adapter(model, source.adapter_path, source.name)
        share = rounding_share(model, DTYPES[dtype])
        model = model.merge_and_unload()
    return model, load_tokenizer(source), share


@torch.no_grad()
def rounding_share(model: Any, dtype: torch.dtype) -> float | None:
    """Return how much rounding changes adapted weights, as a share of what the adapter changes.

    It is the norm of the first change over the norm of the second one, over all adapted weights
    together. A small update is smaller than the distance of neighbouring numbers of bfloat16, and
    much of it is lost where this is near 1.

    Args:
        model: a model with an adapter that is not merged.
        dtype: the type to which the sums will be rounded.

    Returns:
        The share; None if no adapted weight says what was added to it, or nothing was.
    """
    rounding, training = 0.0, 0.0
    for module in model.modules():
        if not hasattr(module, "get_delta_weight") or not hasattr(module, "get_base_layer"):
            continue
        base = module.get_base_layer().weight
        for name in module.active_adapters:
            if name not in getattr(module, "lora_A", {}):
                continue
            delta = module.get_delta_weight(name).float()
            exact = base.float() + delta
            rounding += float((exact.to(dtype).float() - exact).square().sum())
            training += float(delta.square().sum())
    return math.sqrt(rounding / training) if training else None
