"""Builds a tiny random model of each language model that transformers knows, and tells about it.

What makes a config tiny are rules for names of fields, in data/architectures.toml; the types are
those of transformers' own registry, so a release with a new architecture is tried without an edit.
Tokens from `FIRST_TOKEN` up to `VOCAB` are ordinary; those below it have meanings.
"""

import copy
import dataclasses
import itertools
import re
import tomllib
import zlib
from pathlib import Path
from typing import Any

import torch
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto import modeling_auto
from transformers.pytorch_utils import Conv1D

RULES = tomllib.loads((Path(__file__).parent / "data/architectures.toml").read_text())
VOCAB, FIRST_TOKEN = 112, 10
GAIN = 2.0  # of a matrix: the size of its output for inputs of size 1
LAYER_COUNTS = ("num_hidden_layers", "num_layers", "n_layer")


def causal_types() -> list[str]:
    """Return the model types that `AutoModelForCausalLM` knows."""
    return list(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def masked_types() -> list[str]:
    """Return the model types that `AutoModelForMaskedLM` knows."""
    return list(modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES)


def tiny_config(
    model_type: str, *, window: int | None = 8, masked: bool = False, **changes: Any
) -> PretrainedConfig:
    """Return a config with a layer of each sort that the type has; windows stay wide for None.

    `changes` are fields of the config, or `attn_implementation`. What the type cannot do raises what transformers raises.
    """
    config = _shrink(CONFIG_MAPPING[model_type], window, masked, changes)
    if hasattr(config, "is_decoder"):
        config.is_decoder = not masked
    return config


def tiny_model(
    model_type: str, *, window: int | None = 8, seed: int = 0, **changes: Any
) -> PreTrainedModel:
    """Return a causal model in float32 and eval mode, with weights that `seed` fixes.

    The attention is the one that transformers picks. The global generator is left as it was.
    """
    config = tiny_config(model_type, window=window, **changes)
    return _build(AutoModelForCausalLM, config, seed)


def tiny_masked(
    model_type: str, *, window: int | None = 8, seed: int = 0, **changes: Any
) -> PreTrainedModel:
    """Return a model that fills gaps, like `tiny_model`."""
    config = tiny_config(model_type, window=window, masked=True, **changes)
    return _build(AutoModelForMaskedLM, config, seed)


def tokens(rows: int, length: int, *, seed: int = 0) -> torch.Tensor:
    """Return random ordinary tokens."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(FIRST_TOKEN, VOCAB, (rows, length), generator=generator)


def _shrink(
    kind: type[PretrainedConfig], window: int | None, masked: bool, changes: dict[str, Any]
) -> PretrainedConfig:
    fields = {field.name: field.default for field in dataclasses.fields(kind)}
    windows = {} if window is None else _windows(fields, window)
    default = kind(**windows)
    sizes = {name: _small(name, value) for name, value in fields.items()}
    if isinstance(getattr(default, "eos_token_id", None), list):
        sizes["eos_token_id"] = [2]
    if "kv_lora_rank" in fields:  # keys and values of all heads come from one narrow vector
        sizes["num_key_value_heads"] = sizes["num_attention_heads"]
    inside = {name: getattr(default, name, None) for name in kind.sub_configs}
    parts = {n: _shrink(type(p), window, masked, {}) for n, p in inside.items() if p is not None}
    special = {}
    for name in ["special", *["windowed"] * (window is not None), *["causal"] * (not masked)]:
        special |= copy.deepcopy(RULES[name].get(kind.model_type, {}))
    known = {name: value for name, value in sizes.items() if value is not None}
    known |= windows | _layers(default, fields) | _ropes(default) | parts
    return kind(**(known | special | changes))


def _windows(fields: dict[str, Any], window: int) -> dict[str, Any]:
    found = {name: window for name in fields if re.fullmatch(RULES["window"]["fields"], name)}
    switches = RULES["window"]["switches"]
    return found | {name: value for name, value in switches.items() if name in fields}


def _ropes(default: PretrainedConfig) -> dict[str, Any]:
    """Return a stretched rotary embedding, so that it is stretched at a few positions, too."""
    rope = getattr(default, "rope_parameters", None) or {}
    if "original_max_position_embeddings" not in rope:
        return {}
    return {"rope_parameters": rope | {"original_max_position_embeddings": 64}}


def _small(name: str, value: Any) -> Any:
    """Return what a field becomes, or None where the class shall decide."""
    if value is None:
        return RULES["unset"].get(name)
    if type(value) is float:
        return 0.0 if "drop" in name else _first(RULES["factors"], name)
    if type(value) is int:
        most = _first(RULES["most"], name)
        return None if most is None else min(value, most)
    return None


def _first(rules: dict[str, Any], name: str) -> Any:
    return next((value for rule, value in rules.items() if re.fullmatch(rule, name)), None)


def _layers(default: PretrainedConfig, fields: dict[str, Any]) -> dict[str, Any]:
    """Return lists with one entry for each layer, shortened to the first of each combination."""
    counts = [name for name in LAYER_COUNTS if isinstance(getattr(default, name, None), int)]
    total = getattr(default, counts[0]) if counts else 0
    lists = {
        name: list(value)
        for name, value in vars(default).items()
        if name in fields
        and isinstance(value, list | tuple)
        and len(value) == total > 1
        and list(value) != list(range(total))  # numbers of layers, not one entry for each
    }
    if not lists:
        return {}
    only_full = set(lists.get("layer_types", ())) == {"full_attention"}
    if only_full and "sliding_window" in fields and "use_sliding_window" not in fields:
        lists["layer_types"] = (["sliding_attention", "full_attention"] * total)[:total]
    rows = [row for row, _ in itertools.groupby(zip(*lists.values(), strict=True))]
    rows = rows[: max(rows.index(row) for row in set(rows)) + 1]
    shared = "num_kv_shared_layers" in fields  # the last layers use keys and values of earlier ones
    if len(rows) == 1 or (shared and len(rows) < 4):
        rows *= 2
    sizes: dict[str, Any] = {name: len(rows) for name in counts if name in fields}
    if shared:
        sizes["num_kv_shared_layers"] = 2
    for name, column in zip(lists, zip(*rows, strict=True), strict=True):
        small = [_small(name.removesuffix("_per_layer"), value) for value in column]
        sizes[name] = [v if s is None else s for v, s in zip(column, small, strict=True)]
    return sizes


def _build(auto: Any, config: PretrainedConfig, seed: int) -> PreTrainedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = auto.from_config(config).to(torch.float32).eval()
    _redraw(model, seed)
    return model


@torch.no_grad()
def _redraw(model: PreTrainedModel, seed: int) -> None:
    """Draw all matrices anew, wide enough for logits of order 1, in which a wrong token shows.

    A weight follows from the seed and its name: it is the same beside other layers or windows.
    Norms stay as they were, and so do matrices with a meaning, as the decays of state spaces: the
    mean of their entries is not 0.
    """
    head = getattr(model.get_output_embeddings(), "weight", None)
    done = set()
    for path, module in model.named_modules():
        for name, weight in module.named_parameters(recurse=False):
            if id(weight) in done:
                continue
            done.add(id(weight))
            if name == "logit_scale":  # a factor for each token, where the head is of length 1
                weight.mul_(8)
            spread = 2 * weight.shape[-1] ** -0.5 if weight is head else _spread(module, name)
            if spread:
                key = zlib.crc32(f"{seed} {path}.{name}".encode())
                weight.normal_(std=spread, generator=torch.Generator().manual_seed(key))


def _spread(module: torch.nn.Module, name: str) -> float:
    """Return the standard deviation with which a weight is drawn, 0 where it stays as it is."""
    weight = getattr(module, name)
    if "sink" in name:
        return 1.0
    if weight.ndim < 2:
        plain = name == "bias" and getattr(module, "weight", weight).ndim > 1
        return 0.2 if plain and not weight.any() else 0.0
    if weight.numel() and weight.isfinite().all():
        error = weight.std(correction=0) * weight.numel() ** -0.5
        if weight.mean().abs() > 4 * error:
            return 0.0
    if isinstance(module, torch.nn.Embedding):
        return 1.0
    if isinstance(module, Conv1D):
        inputs = weight.shape[0]
    elif isinstance(module, torch.nn.Conv1d | torch.nn.Conv2d | torch.nn.Conv3d):
        inputs = weight[0].numel()
    else:  # of experts in three axes, either one of the last two may be the inputs
        inputs = sum(weight.shape[1:]) // (weight.ndim - 1)
    return float(GAIN * max(inputs, 1) ** -0.5)
