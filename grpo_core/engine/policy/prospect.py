"""Estimate which GPU a model needs to be trained, from its config alone, before it is fetched.

The model is built without memory, on torch's device "meta". Weights, gradients and the optimizer's
state are counted in it, and what a forward pass keeps is measured on it, as `memory` does with a
loaded policy. Settings have their defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from grpo_core.config.overrides import build_config
from grpo_core.engine.compute.kv import bytes_per_token
from grpo_core.engine.compute.logprob import COPIES_WITH_REFERENCE
from grpo_core.engine.compute.recompute import layers, recompute
from grpo_core.engine.compute.tuning import gpu_tuning
from grpo_core.engine.models.adapter import add_adapter
from grpo_core.engine.models.fitting import described_sizes, model_of_config
from grpo_core.engine.models.loading import loading_errors
from grpo_core.engine.models.quantized import BYTES
from grpo_core.engine.models.source import ModelSource
from grpo_core.engine.policy.memory import DRAWING, NODES, SPARE, fit_curve, optimizer_bytes
from grpo_core.engine.policy.memory_estimate import MB, MemoryEstimate

CARDS = (8, 12, 16, 24, 32, 40, 48, 80, 96, 140)
"""Memory of the usual GPUs in GiB; the last is an H200."""
CONTEXT = 0.75 * 2**30
"""Bytes of a GPU that CUDA itself takes: its context and the libraries' kernels."""
PROMPT_SHARE = 0.25
"""How much of an attempt's tokens are those of the prompt."""
_TYPE = torch.bfloat16


@dataclass(frozen=True, slots=True)
class Way:
    """Hold one way to train a model."""

    lora: bool = True
    """Whether an adapter is trained, and not all weights."""
    quantization: str = "none"
    """The setting `model.quantization`."""
    recomputes: bool = False
    """The setting `trainer.gradient_checkpointing`."""


WAYS: Mapping[str, Way] = MappingProxyType(
    {
        "LoRA": Way(),
        "LoRA, recomputed": Way(recomputes=True),
        "4-bit LoRA": Way(quantization="4bit"),
        "4-bit LoRA, recomputed": Way(quantization="4bit", recomputes=True),
        "full": Way(lora=False),
        "full, recomputed": Way(lora=False, recomputes=True),
    }
)
"""The ways by their names; "recomputed" is trainer.gradient_checkpointing=true."""


class Prospect:
    """Measure what a model that is not loaded would need.

    Args:
        source: where its config is.
        lora: whether an adapter is trained, and not all weights.

    Raises:
        UserError: no model can be built of the config, or none that computes without weights.
    """

    def __init__(self, source: ModelSource, *, lora: bool) -> None:
        with loading_errors(source.name, "measured without its weights"):
            self._measure(source, lora=lora)

    def _measure(self, source: ModelSource, *, lora: bool) -> None:
        self.sizes = described_sizes(source, masked=False)
        """Counts of the model's weights."""
        self._config = build_config([{"environment": "any", "lora": {"enabled": lora}}])
        model = model_of_config(source, masked=False).to(_TYPE)
        text_config = model.config.get_text_config(decoder=True)
        self._vocabulary, self._hidden = int(text_config.vocab_size), int(text_config.hidden_size)
        length = getattr(text_config, "max_position_embeddings", None) or 0
        self.context = length if length > 0 else None
        """Most tokens that the model can attend to; None if unknown."""
        self.cached_bytes = bytes_per_token(model, torch.device("meta"))
        """Bytes that a cache keeps for each token."""
        if lora:
            with torch.device("meta"):
                model = add_adapter(model, self._config.lora, source)
        self.trainable: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
        """Tensors that are trained, of which each number takes four bytes."""
        model.to(_TYPE).eval()
        self.kept = _kept_per_token(model)
        """Bytes per token that a forward pass keeps for the backward pass."""
        marked_layers = layers(model)
        self.layer = self.kept / max(1, len(marked_layers))
        """Bytes that a layer computes per token."""
        self.kept_recomputed = self.kept
        """The same bytes as `kept` where layers are recomputed."""
        if marked_layers:
            recompute(model)
            self.kept_recomputed = _kept_per_token(model)

    def estimate(self, way: Way, length: int, *, card: int) -> MemoryEstimate:
        """Estimate the memory of a run whose attempts have `length` tokens.

        Args:
            way: how the model is trained.
            length: tokens of the prompt and of the completion.
            card: bytes of memory of the GPU, which decides some defaults.
        """
        config, sizes = self._config, self.sizes
        tuning = gpu_tuning(card, weights=sizes.parameters)
        trained = 4.0 * sum(p.numel() for p in self.trainable)
        linear_bytes = BYTES.get(way.quantization, float(_TYPE.itemsize))
        frozen = sizes.linear * linear_bytes
        frozen += (sizes.parameters - sizes.linear) * _TYPE.itemsize
        full = 0.0 if way.lora else 4.0 * sizes.parameters
        always = {
            "CUDA": CONTEXT,
            "weights": full or frozen,
            "reference": full,
            "adapter": trained if way.lora else 0.0,
            "gradients": trained,
            "optimizer": optimizer_bytes(self.trainable, config.optimizer.name, number=4),
        }
        rows = min(config.prompts_per_step * config.group_size, tuning.max_rows)
        prompt = int(PROMPT_SHARE * length)
        merges = way.lora and way.quantization == "none"
        cast = full / 2  # in the type of the forward pass
        rollout = {
            "weights for decoding": cast + (sizes.linear * _TYPE.itemsize if merges else 0),
            "keys and values": min(SPARE * rows * length * self.cached_bytes, tuning.kv_mb * MB),
            "decoding": DRAWING * rows * self._vocabulary * 4
            + min(config.prompts_per_step, rows) * prompt * self.layer,
        }
        kept, times = (self.kept_recomputed, 3) if way.recomputes else (self.kept, 2)
        tokens = max(length, tuning.micro_batch_tokens)
        logits = COPIES_WITH_REFERENCE * tokens * self._vocabulary * 4
        attempts = config.prompts_per_step * config.group_size
        update = {
            "weights in the pass": cast,
            "activations": tokens * (kept + times * self.layer),
            "logits": min(logits, tuning.logits_mb * MB),
            "states of the reference": attempts * (length - prompt) * self._hidden * _TYPE.itemsize,
        }
        return MemoryEstimate(always, rollout, update, float(card))

    def smallest_card(self, way: Way, length: int) -> tuple[int | None, float]:
        """Return the smallest of `CARDS` on which a run fits, and the bytes that it takes there.

        None: it fits on none of them; then the bytes are those on the largest.
        """
        peak = 0.0
        for gigabytes in CARDS:
            card = gigabytes * 2**30
            peak = self.estimate(way, length, card=card).peak
            if peak <= card:
                return gigabytes, peak
        return None, peak


def _kept_per_token(model: Any) -> float:
    """Return the bytes per token that a forward pass keeps."""
    return fit_curve([(nodes, _kept_bytes(model, nodes)) for nodes in NODES])[1]


def _kept_bytes(model: Any, nodes: int) -> int:
    """Return the bytes that a pass of a row of `nodes` tokens keeps, without those of logits."""
    weights = {p.untyped_storage()._cdata for p in model.parameters()}
    kept: dict[int, tuple[int, Tensor]] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            kept[storage._cdata] = storage.nbytes(), tensor.detach()
        return tensor

    base = getattr(model, "base_model", model)
    body = base.model.base_model if hasattr(model, "peft_config") else base
    tokens = torch.zeros((1, nodes), dtype=torch.long, device="meta")
    # With a ready mask no values are looked at, of which there are none.
    mask = torch.zeros((1, 1, nodes, nodes), dtype=_TYPE, device="meta")
    with torch.enable_grad(), saved_tensors_hooks(pack, lambda tensor: tensor):
        hidden = body(input_ids=tokens, attention_mask=mask, use_cache=False)
    del hidden
    return sum(size for size, _ in kept.values())
