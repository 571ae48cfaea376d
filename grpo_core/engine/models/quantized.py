"""Quantise frozen weights with bitsandbytes, through transformers.

They take 8 bits (LLM.int8(), Dettmers et al., arXiv 2208.07339) or 4 bits (NF4, QLoRA, Dettmers et
al., arXiv 2305.14314).
"""

from __future__ import annotations

from logging import getLogger
from typing import Any

import torch
import transformers

from grpo_core.protocol.errors import ConfigError

BYTES = {"8bit": 1.0, "4bit": 0.516}
"""Bytes per weight: NF4 keeps a scale of 8 bits for 64 weights, and one of 32 bits for 256 scales.
"""


def loading_arguments(
    name: str, quantization: str, dtype: torch.dtype, device: torch.device, *, gguf: bool
) -> dict[str, Any]:
    """Return the arguments of `from_pretrained` that quantise the weights.

    Args:
        name: of the model, for messages.
        quantization: "8bit" or "4bit".
        dtype: in which products are computed with 4-bit weights.
        gguf: whether the weights are a GGUF file.

    Raises:
        ConfigError: the device or the file cannot be combined with quantisation.
    """
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(
            f"bitsandbytes has no {quantization} weights for device {device.type!r}; leave out "
            "model.quantization"
        )
    if gguf:
        raise ConfigError(
            f"{name!r} is a GGUF file, which is quantised in its own way; convert it to "
            "safetensors, or leave out model.quantization"
        )
    return {
        "quantization_config": transformers.BitsAndBytesConfig(
            load_in_8bit=quantization == "8bit",
            load_in_4bit=quantization == "4bit",
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=dtype,
        ),
        "device_map": {"": device},
    }


def unpacking_arguments() -> dict[str, Any]:
    """Return the arguments of `from_pretrained` that unpack the weights of a GGUF file.

    transformers has a config for it from 5.17 on; older versions always unpack them.
    """
    if not hasattr(transformers, "GgufConfig"):
        return {}
    return {"quantization_config": transformers.GgufConfig(dequantize=True)}


def patch_bitsandbytes(model: Any) -> None:
    """Switch off two behaviours of bitsandbytes.

    It logs in every pass that 8-bit products are made of float16. And on some CPUs it re-lays out
    4-bit weights in the first forward pass without a gradient, for bfloat16 products that have no
    gradient: then sampling would not use the weights that are trained, and no later gradient would
    be right.
    """
    getLogger("bitsandbytes.autograd").setLevel("ERROR")
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def is_quantized(model: Any) -> bool:
    """Return whether the weights of `model` are quantised."""
    return getattr(model, "quantization_method", None) is not None
