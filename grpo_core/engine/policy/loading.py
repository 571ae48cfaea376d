"""Load a policy: its model, tokenizer, adapter and frozen reference."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from grpo_core.calls.phases import phase
from grpo_core.config.config import RunConfig
from grpo_core.engine.compute.heap import share_heap
from grpo_core.engine.compute.recompute import recompute
from grpo_core.engine.models.adapter import add_adapter
from grpo_core.engine.models.adapter_files import load_adapter
from grpo_core.engine.models.base import base_of
from grpo_core.engine.models.chat import ChatFrame
from grpo_core.engine.models.device import pick_device, pick_dtype
from grpo_core.engine.models.fitting import refuse_what_cannot_fit
from grpo_core.engine.models.load import load_model
from grpo_core.engine.models.loading import loading_errors
from grpo_core.engine.models.offload import offload
from grpo_core.engine.models.source import ModelSource
from grpo_core.engine.models.templates import set_template
from grpo_core.engine.models.tokenizer import load_tokenizer
from grpo_core.engine.models.vocabulary import refuse_foreign_tokenizer
from grpo_core.engine.policy.causal import Policy
from grpo_core.engine.policy.passed import PassedBefore

PREPARING = "preparing the model (a new one is checked: fast against plain computation)"
"""What a policy does first; the result of the check is kept for the next run."""


def load(
    policy_class: type[Policy],
    config: RunConfig,
    source: ModelSource,
    *,
    need_reference: bool,
    need_adapter: bool = True,
    say: Callable[[str], object] = lambda text: None,
) -> Policy:
    """Load the configured model with a fresh adapter (seeded), or with all weights trainable.

    Args:
        policy_class: the class that fits the model.
        config: the configuration of the run.
        source: where the model is.
        need_reference: whether a frozen reference is kept.
        need_adapter: whether a model without an adapter gets a fresh one where one is trained;
            false: it only samples.
        say: is told what takes long.
    """
    device = pick_device(config.model.device)
    share_heap(device)
    dtype = pick_dtype(config.model.dtype, device)
    # Full fine-tuning keeps master weights in float32: steps of 1e-6 vanish in bfloat16.
    storage_dtype = dtype if config.lora.enabled or dtype == torch.float64 else torch.float32
    refuse_what_cannot_fit(config, source, storage_dtype, device)
    base = load_model(
        source,
        dtype=storage_dtype,
        device=torch.device("cpu") if config.model.offload else device,
        quantization=config.model.quantization,
        kind=config.model.kind,
    )
    tokenizer = load_tokenizer(source)
    refuse_foreign_tokenizer(base, tokenizer, source)
    set_template(tokenizer, config.model.chat_template, source)
    torch.manual_seed(config.seed)
    if not config.lora.enabled:
        model, reference = _make_trainable(base, source, need_reference)
    elif need_adapter or source.adapter_path is not None:
        model, reference = add_adapter(base, config.lora, source, task=policy_class.task), None
    else:
        model, reference = base.requires_grad_(False), None
    if config.model.offload:
        offload(model, device)
    if config.trainer.gradient_checkpointing:
        recompute(model)
    with loading_errors(source.name, "used"), phase(PREPARING, say):
        policy = policy_class(
            model, tokenizer, reference=reference, compute_dtype=dtype, **_arguments(config)
        )
    policy.base = base_of(source)
    return policy


def _arguments(config: RunConfig) -> dict[str, Any]:
    """Return the arguments of a policy that the config decides."""
    chosen, logits_mb = config.model, config.trainer.logits_mb
    return {
        "shared_prefix": config.trainer.shared_prefix,
        "logits_bytes": None if logits_mb is None else logits_mb * 2**20,
        "frame": ChatFrame(
            chosen.system_prompt,
            chosen.chat_template_args,
            tool_format=None if chosen.tool_format == "auto" else chosen.tool_format,
            system_role=chosen.system_role,
        ),
        "stacked": config.trainer.stacked_layers,
        "thought_tags": chosen.thought_tags,
        "passed": PassedBefore(reads=config.trainer.self_check == "once"),
    }


def _make_trainable(base: Any, source: ModelSource, need_reference: bool) -> tuple[Any, Any]:
    """Make all weights trainable, with a frozen copy if a reference is needed.

    An adapter that the source contains is merged first.

    Returns:
        The model, and the reference or None.
    """
    if source.adapter_path is not None:
        base = load_adapter(base, source.adapter_path, source.name).merge_and_unload()
    base.requires_grad_(True)
    return base, copy.deepcopy(base).eval().requires_grad_(False) if need_reference else None
