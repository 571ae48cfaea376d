"""Export a finished run as a model that needs neither peft nor its base model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from grpo_core.engine.models.adapter_files import load_adapter
from grpo_core.engine.models.device import DTYPES, pick_dtype
from grpo_core.engine.models.disk import as_os_error
from grpo_core.engine.models.load import load_model, resolve
from grpo_core.engine.models.tokenizer import load_tokenizer
from grpo_core.runs.atomic import whole_folder
from grpo_core.runs.lines import writing


def save_merged(final: Path, out: Path, *, dtype: str) -> None:
    """Write the adapter in `final` merged into its base model, with the tokenizer, to `out`.

    The sum is computed in float32 and rounded once.

    Args:
        dtype: of the weights in `out`; "auto" is the dtype that suits a CPU.
    """
    source, device = resolve(str(final)), torch.device("cpu")
    model: Any = load_model(source, dtype=torch.float32, device=device)
    if source.adapter_path is not None:
        model = load_adapter(model, source.adapter_path, source.name).merge_and_unload()
    # Weights are only stored here, so float16 is allowed although the device is a CPU.
    model = model.to(pick_dtype(dtype, device) if dtype == "auto" else DTYPES[dtype])
    with writing(out, then="export again"), as_os_error(), whole_folder(out) as folder:
        model.save_pretrained(folder)
        load_tokenizer(source).save_pretrained(folder)
