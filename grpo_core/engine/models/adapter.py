"""Add peft's LoRA adapters to a model, and merge them into the weights for sampling."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch

from grpo_core.config.settings import LoraConfig
from grpo_core.engine.models.adapter_files import check_adapter, import_peft
from grpo_core.engine.models.base import base_of
from grpo_core.engine.models.loading import loading_errors
from grpo_core.engine.models.quiet import quiet_loading
from grpo_core.engine.models.reference import ADAPTER
from grpo_core.engine.models.source import ModelSource
from grpo_core.engine.models.swapped import swapped
from grpo_core.protocol.errors import ConfigError, did_you_mean

ALL_LINEAR = ("all-linear",)


def add_adapter(
    base: Any, config: LoraConfig, source: ModelSource, *, task: str | None = "CAUSAL_LM"
) -> Any:
    """Return `base` with a trainable LoRA adapter in float32.

    An adapter that the source brings is trained further, unchanged but for the dropout; a frozen
    copy of it is kept as the reference.

    Args:
        task: peft's name for what the model does; None if it has none.

    Raises:
        ConfigError: `lora.targets` does not fit the model.
    """
    peft = import_peft()
    lora = peft.LoraConfig(
        r=config.r,
        lora_alpha=config.alpha,
        lora_dropout=config.dropout,
        target_modules="all-linear" if config.targets == ALL_LINEAR else list(config.targets),
        task_type=task,
        revision=base_of(source).revision,
    )
    if source.adapter_path is not None:
        return _continue_adapter(base, config, source)
    _check_targets(base, config.targets)
    try:
        with quiet_loading():
            return peft.get_peft_model(base, lora)
    except ValueError as error:
        raise ConfigError(
            f"lora.targets={config.targets!r} does not fit the model: {error}"
        ) from None


def _check_targets(base: Any, targets: Sequence[str]) -> None:
    """Raise ConfigError if a name among several selects no module, which peft would ignore.

    Of names that all select nothing the first is told.
    """
    if tuple(targets) == ALL_LINEAR:
        return
    names = [name for name, _ in base.named_modules() if name]
    linear = {
        _last_part(name)
        for name, module in base.named_modules()
        if isinstance(module, torch.nn.Linear) and module is not base.get_output_embeddings()
    }
    for target in targets:
        if not any(name == target or name.endswith(f".{target}") for name in names):
            raise ConfigError(
                f"lora.targets names {target!r}, and the model has no module of that name"
                f"{did_you_mean(target, linear).removesuffix('.')}; its linear layers: "
                f"{', '.join(sorted(linear)) or 'none'} (all-linear takes all of them)"
            )


def _continue_adapter(base: Any, config: LoraConfig, source: ModelSource) -> Any:
    """Return `base` with the adapter that the source brings, and a frozen copy of it."""
    peft = import_peft()
    path = str(source.adapter_path)
    check_adapter(base, Path(path), source.name)
    with loading_errors(source.name, "loaded with its adapter"), quiet_loading():
        stored = peft.PeftConfig.from_pretrained(path)
        # It may name a folder of another machine, or of this user's cache.
        named = base_of(source)
        stored.base_model_name_or_path, stored.revision = named.name, named.revision
        if isinstance(stored, peft.LoraConfig):
            stored.lora_dropout = config.dropout
        model = peft.PeftModel.from_pretrained(base, path, is_trainable=True, config=stored)
        trained = model.active_adapter
        model.load_adapter(path, adapter_name=ADAPTER, is_trainable=False)
        model.set_adapter(trained)  # up to peft 0.18 loading another one freezes it
        return model


def continued_settings(model: Any) -> dict[str, Any]:
    """Return the settings of the adapter that the source brought, under the names of the config.

    The dict is empty if the adapter is new or there is none. Modules are named by the last part of
    their path where that selects the same modules, as it would in a model with more layers.
    """
    configs = getattr(model, "peft_config", {})
    if ADAPTER not in configs or not hasattr(configs[ADAPTER], "lora_alpha"):
        return {}
    adapter_config = configs[ADAPTER]
    adapted_names = {name for name, module in model.named_modules() if _is_adapted(module)}
    last_parts = {_last_part(name) for name in adapted_names}
    if {
        name for name, _ in model.named_modules() if _last_part(name) in last_parts
    } == adapted_names:
        targets = sorted(last_parts)
    else:
        targets = (
            [adapter_config.target_modules]
            if isinstance(adapter_config.target_modules, str)
            else sorted(adapter_config.target_modules or ())
        )
    return {"r": adapter_config.r, "alpha": float(adapter_config.lora_alpha), "targets": targets}


def base_weights(model: Any) -> int:
    """Return the number of weights of the model without its adapters, whatever way they are stored.

    Weights in 4 bits are packed in pairs; their tensors remember the shape before. Offloaded
    weights that two layers share are two empty tensors, of which one is counted.
    """
    prefix = getattr(getattr(model, "base_model", None), "prefix", None)  # of peft's own tensors
    head = getattr(model.get_output_embeddings(), "weight", None)
    is_copy = (
        head is not None
        and head.is_meta
        and getattr(model.config, "tie_word_embeddings", False)
        and head is not model.get_input_embeddings().weight
    )
    return sum(
        math.prod(getattr(getattr(weight, "quant_state", None), "shape", weight.shape))
        for name, weight in model.named_parameters()
        if not (is_copy and weight is head)
        and (
            not isinstance(prefix, str) or (prefix not in name and ".modules_to_save." not in name)
        )
    )


def ineffective_settings(model: Any, config: LoraConfig) -> list[str]:
    """Return as text the settings that the user chose but the continued adapter does not have.

    The setting all-linear is not compared: the adapter lists the modules that it stood for.
    """
    return [
        f"lora.{name}={configured!r} (it has "
        f"{_format_targets(actual) if name == 'targets' else actual})"
        for name, actual in continued_settings(model).items()
        if name in config.model_fields_set
        and (configured := getattr(config, name)) != actual
        and not _same_targets(configured, actual)
    ]


def _same_targets(configured: Any, actual: Any) -> bool:
    """Return whether both select the same modules, by whole paths or by their last parts."""
    return isinstance(configured, tuple) and (
        configured == ALL_LINEAR or set(configured) in (set(actual), set(map(_last_part, actual)))
    )


def _format_targets(modules: Sequence[str]) -> str:
    return ", ".join(modules) if len(modules) < 10 else f"{len(modules)} modules"


def _last_part(name: str) -> str:
    return name.rpartition(".")[2]


@contextmanager
def merged(model: Any) -> Iterator[None]:
    """Sample with the adapter merged into a copy of the weights.

    This saves 210 pairs of small matrix products in every decode step of a model with 30 layers. It
    is done only for an adapter that is a sum of weight products and nothing else (no DoRA, biases
    or further trained modules), on weights that are neither quantised nor offloaded. The original
    weights are put back untouched, so nothing drifts.
    """
    layers = adapted_layers(model)
    if not layers or not _is_plain(model, layers):
        yield
        return
    adapter = model.active_adapter
    sums = [
        (
            layer.get_base_layer().weight,
            layer.get_base_layer().weight.data + layer.get_delta_weight(adapter),
        )
        for layer in layers
        if adapter in layer.lora_A
    ]
    with swapped("data", sums), model.disable_adapter():
        yield


def in_type_of_input(layers: Sequence[Any]) -> AbstractContextManager[None]:
    """Return a context in which the adapter computes in the dtype of its input.

    Autocast casts the adapter's weights to that dtype; without this, peft casts every input to the
    dtype of the weights.
    """
    return swapped("cast_input_dtype_enabled", [(layer, False) for layer in layers])


def product(layer: Any) -> tuple[Any, Any] | None:
    """Return the two matrices whose product the adapter now adds to the weights of `layer`.

    Returns:
        The matrices (r, in) and (out, r), the second already scaled; None if the adapter adds
        something else, or nothing.
    """
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
    """Return the size in bytes of the copy of the weights that `merged` makes."""
    layers = adapted_layers(model)
    return (
        sum(layer.get_base_layer().weight.nbytes for layer in layers)
        if layers and _is_plain(model, layers)
        else 0
    )


def adapted_layers(model: Any) -> list[Any]:
    """Return the layers that have a LoRA adapter."""
    return [module for module in model.modules() if _is_adapted(module)]


def _is_adapted(module: Any) -> bool:
    return hasattr(module, "lora_A") and hasattr(module, "get_delta_weight")


def _is_plain(model: Any, layers: list[Any]) -> bool:
    """Return whether the adapter is a sum of weight products and nothing else, on unquantised
    weights.
    """
    config = model.peft_config[model.active_adapter]
    excluded_options = ("use_dora", "lora_bias", "modules_to_save", "trainable_token_indices")
    return all(
        type(base) is torch.nn.Linear and base.weight.device.type != "meta"
        for base in (layer.get_base_layer() for layer in layers)
    ) and not any(getattr(config, name, None) for name in excluded_options)
