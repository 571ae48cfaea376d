"""A finished run as a model that needs neither peft nor its base."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from grpo_core.runs.atomic import whole_folder
from grpo_core.runs.lines import writing
from grpo_core.train.models.device import DTYPES, pick_dtype
from grpo_core.train.models.disk import as_os_error
from grpo_core.train.models.load import load_model, load_tokenizer, resolve
from grpo_core.train.models.quiet import quiet_loading


def save_merged(final: Path, out: Path, *, dtype: str) -> None:
    """The adapter in `final` added to its base, with the tokenizer, in `out`. The sum is made in float32 and rounded once."""
    with quiet_loading():
        import peft

    source, device = resolve(str(final)), torch.device("cpu")
    model: Any = load_model(source, dtype=torch.float32, device=device)
    if source.adapter_path is not None:
        with quiet_loading():
            model = peft.PeftModel.from_pretrained(model, source.adapter_path).merge_and_unload()
    model = model.to(
        pick_dtype(dtype, device) if dtype == "auto" else DTYPES[dtype]
    )  # only stored here: float16 is as good as another
    with writing(out, then="export again"), as_os_error(), whole_folder(out) as folder:
        model.save_pretrained(folder)
        load_tokenizer(source).save_pretrained(folder)
