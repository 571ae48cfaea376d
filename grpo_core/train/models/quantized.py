"""Frozen weights in 8 bits (LLM.int8(), Dettmers et al., arXiv 2208.07339) or 4 (NF4, QLoRA, Dettmers et al., arXiv 2305.14314), by
bitsandbytes through transformers."""

from __future__ import annotations

from logging import getLogger
from typing import Any

import torch
import transformers

from grpo_core.protocol.errors import ConfigError

BYTES = {"8bit": 1.0, "4bit": 0.516}
"""Of a weight: NF4 keeps a scale of 8 bits for 64 of them, and one of 32 bits for 256 of those."""


def arguments(
    name: str, quantization: str, dtype: torch.dtype, device: torch.device, *, gguf: bool
) -> dict[str, Any]:
    """Of `from_pretrained`."""
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(
            f"bitsandbytes has no {quantization} weights for device {device.type!r}; leave model.quantization away"
        )
    if gguf:
        raise ConfigError(
            f"{name!r} is a GGUF file, which is quantised in its own way; convert it to safetensors, or leave model.quantization away"
        )
    if quantization == "4bit":
        config = transformers.BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=dtype,
        )
    else:
        config = transformers.BitsAndBytesConfig(load_in_8bit=True)
    return {"quantization_config": config, "device_map": {"": device}}


def settle(model: Any) -> None:
    """Keep bitsandbytes from two habits. It says in every pass that 8-bit products are made of float16. And on some CPUs it lays 4-bit
    weights out anew in the first forward pass without a gradient, for products in bfloat16 that have none: what is sampled would not be
    what is trained, and no gradient would be right any more."""
    getLogger("bitsandbytes.autograd").setLevel("ERROR")
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def is_quantized(model: Any) -> bool:
    return getattr(model, "quantization_method", None) is not None
