"""LoRA adapters of peft: put on, and folded into the weights for sampling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from grpo_core.config.settings import LoraConfig
from grpo_core.protocol.errors import ConfigError
from grpo_core.train.models.load import ModelSource
from grpo_core.train.models.quiet import quiet_loading
from grpo_core.train.models.reference import ADAPTER

ALL_LINEAR = ("all-linear",)


def add_adapter(
    base: Any, config: LoraConfig, source: ModelSource, *, task: str | None = "CAUSAL_LM"
) -> Any:
    """`base` with a trainable LoRA adapter in float32; one that the source brings is continued, as it is but for the dropout, and kept
    frozen as reference, too.

    task: peft's word for what the model does; None, where it has none.
    """
    with quiet_loading():
        import peft

    targets = "all-linear" if config.targets == ALL_LINEAR else list(config.targets)
    lora = peft.LoraConfig(
        r=config.r,
        lora_alpha=config.alpha,
        lora_dropout=config.dropout,
        target_modules=targets,
        task_type=task,
        revision=source.revision,
    )
    try:
        with quiet_loading():
            if source.adapter_path is None:
                return peft.get_peft_model(base, lora)
            stored = peft.PeftConfig.from_pretrained(source.adapter_path)
            if isinstance(stored, peft.LoraConfig):
                stored.lora_dropout = config.dropout
            model = peft.PeftModel.from_pretrained(
                base, source.adapter_path, is_trainable=True, config=stored
            )
            model.load_adapter(source.adapter_path, adapter_name=ADAPTER, is_trainable=False)
            return model
    except ValueError as error:
        raise ConfigError(
            f"lora.targets={config.targets!r} does not fit the model: {error}"
        ) from None


def continued(model: Any) -> dict[str, Any]:
    """What the adapter that the source brought really has, under the names of the config; nothing for a fresh one, or none.

    Modules are named by their ends where these mean the same ones, as they would in a model with more layers.
    """
    configs = getattr(model, "peft_config", {})
    if ADAPTER not in configs or not hasattr(configs[ADAPTER], "lora_alpha"):
        return {}
    own = configs[ADAPTER]
    adapted = {name for name, module in model.named_modules() if _is_adapted(module)}
    ends = {_end(name) for name in adapted}
    if {name for name, _ in model.named_modules() if _end(name) in ends} == adapted:
        targets = sorted(ends)
    else:
        targets = (
            [own.target_modules]
            if isinstance(own.target_modules, str)
            else sorted(own.target_modules or ())
        )
    return {"r": own.r, "alpha": float(own.lora_alpha), "targets": targets}


def without_effect(model: Any, config: LoraConfig) -> list[str]:
    """Settings that somebody chose and an adapter that is continued does not have, as text. all-linear is not looked at: the adapter names
    the modules that it found."""
    return [
        f"lora.{name}={chosen!r} (it has {_named(real) if name == 'targets' else real})"
        for name, real in continued(model).items()
        if name in config.model_fields_set
        and (chosen := getattr(config, name)) != real
        and not _same_targets(chosen, real)
    ]


def _same_targets(chosen: Any, real: Any) -> bool:
    """Whether both name the same modules, be it by their whole paths or by their ends."""
    return isinstance(chosen, tuple) and (
        chosen == ALL_LINEAR or set(chosen) in (set(real), set(map(_end, real)))
    )


def _named(modules: Sequence[str]) -> str:
    return ", ".join(modules) if len(modules) < 10 else f"{len(modules)} modules"


def _end(name: str) -> str:
    return name.rpartition(".")[2]


@contextmanager
def merged(model: Any) -> Iterator[None]:
    """The adapter folded into a copy of the weights: 210 pairs of small products less in every decode step of a model of 30 layers.

    Only for an adapter that is a sum of weight products and nothing else (no DoRA, biases or further trained modules), on weights that
    are numbers and not quantised or elsewhere. The weights
    themselves are put back untouched, so that nothing drifts.
    """
    layers = adapted_layers(model)
    if not layers or not _is_plain(model, layers):
        yield
        return
    adapter = model.active_adapter
    weights = [
        (layer.get_base_layer().weight, layer.get_base_layer().weight.data) for layer in layers
    ]
    try:
        for layer, (weight, original) in zip(layers, weights, strict=True):
            if adapter in layer.lora_A:
                weight.data = original + layer.get_delta_weight(adapter)
        with model.disable_adapter():
            yield
    finally:
        for weight, original in weights:
            weight.data = original


@contextmanager
def in_type_of_input(layers: Sequence[Any]) -> Iterator[None]:
    """The adapter computes in the type of its input, to which autocast brings its weights; else peft casts every input to theirs."""
    own = [layer.cast_input_dtype_enabled for layer in layers]
    try:
        for layer in layers:
            layer.cast_input_dtype_enabled = False
        yield
    finally:
        for layer, enabled in zip(layers, own, strict=True):
            layer.cast_input_dtype_enabled = enabled


def product(layer: Any) -> tuple[Any, Any] | None:
    """The two matrices (r, in) and (out, r) whose product the adapter adds to the weights of `layer` as it computes now; None where it
    adds something else, or nothing."""
    if layer.disable_adapters or layer.merged or len(layer.active_adapters) != 1:
        return None
    (name,) = layer.active_adapters
    if (
        name not in layer.lora_A
        or name in layer.lora_variant
        or layer.lora_B[name].bias is not None
    ):
        return None
    return layer.lora_A[name].weight, layer.lora_B[name].weight * layer.scaling[name]


def merged_bytes(model: Any) -> int:
    """Of the copy that `merged` makes."""
    layers = adapted_layers(model)
    return (
        sum(layer.get_base_layer().weight.nbytes for layer in layers)
        if layers and _is_plain(model, layers)
        else 0
    )


def adapted_layers(model: Any) -> list[Any]:
    """The layers that have a LoRA adapter."""
    return [module for module in model.modules() if _is_adapted(module)]


def _is_adapted(module: Any) -> bool:
    return hasattr(module, "lora_A") and hasattr(module, "get_delta_weight")


def _is_matrix(layer: Any) -> bool:
    return type(layer) is torch.nn.Linear and layer.weight.device.type != "meta"


def _is_plain(model: Any, layers: list[Any]) -> bool:
    config = model.peft_config[model.active_adapter]
    more = ("use_dora", "lora_bias", "modules_to_save", "trainable_token_indices")
    return all(_is_matrix(m.get_base_layer()) for m in layers) and not any(
        getattr(config, n, None) for n in more
    )
