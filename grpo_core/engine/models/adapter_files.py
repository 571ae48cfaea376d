"""Look at an adapter's files before peft loads them, and load them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from grpo_core.config.model_files import Stored, check_files, read_json, stored_weights
from grpo_core.engine.models import guarded
from grpo_core.engine.models.guarded import TrialError
from grpo_core.engine.models.loading import loading_errors
from grpo_core.engine.models.quiet import quiet_loading
from grpo_core.protocol.errors import MissingExtraError, UserError

ADAPTER = "adapter_config.json"
KINDS = frozenset(
    {"LORA", "ADALORA", "LOHA", "LOKR", "IA3", "OFT", "BOFT", "VERA", "HRA", "LN_TUNING"}
)
"""Kinds of adapters that change weights and read nothing but their own files."""
FOREIGN = ("megatron_config", "layer_replication")
"""Settings that import a module, or make other layers than the base model has."""
MAX_NUMBER = 2**17
"""The largest rank, layer or token in a config."""
_COUNTERS = frozenset({"total_step", "tinit", "tfinal", "deltaT", "projection_prng_key"})
"""Numbers of a config that are no sizes."""
_STARTS = re.compile("gaussian|olora|pissa|orthogonal|eva|pissa_niter_[0-9]{1,2}")
"""How the matrices of an adapter may begin: by names whose work is bounded."""
_WHOLE = ("target_modules", "exclude_modules", "feedforward_modules")
"""Settings whose text is a pattern for a whole name."""
_PARTS = ("modules_to_save", "layers_pattern", "rank_pattern", "alpha_pattern", "target_parameters")
"""Settings whose texts, or keys, become parts of patterns."""
_SLACK_BYTES = 2**26


def import_peft() -> Any:
    """Return the package peft.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        with quiet_loading():
            import peft
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "an adapter (lora.enabled=true)", "train", package="peft"
        ) from error
    return peft


def load_adapter(model: Any, folder: str | Path, name: str, **arguments: Any) -> Any:
    """Return `model` with the adapter in a folder on top.

    Args:
        model: the base model.
        folder: the adapter's folder.
        name: of the whole, as the user wrote it, for messages.
        arguments: further ones of `PeftModel.from_pretrained`.

    Raises:
        UserError: the adapter cannot be loaded.
    """
    check_adapter(model, Path(folder), name)
    peft = import_peft()
    with loading_errors(name, "loaded with its adapter"), quiet_loading():
        return peft.PeftModel.from_pretrained(model, folder, **arguments)


def check_adapter(model: Any, folder: Path, name: str) -> None:
    """Refuse an adapter that would take for ever, or memory that its files do not explain.

    Args:
        model: the base model.
        folder: the adapter's folder.
        name: of the whole, for messages.

    Raises:
        UserError: the adapter cannot be used.
    """
    path = folder / ADAPTER
    with loading_errors(name, "loaded with its adapter"):
        check_files(folder)
        config = read_json(path)
        kind = config.get("peft_type")
        if kind not in KINDS:
            raise UserError(
                f"{path} is an adapter of the kind {kind!r:.80}; known are "
                f"{', '.join(sorted(KINDS))}; merge it into its model with the tool that made it"
            )
        for setting in FOREIGN:
            if config.get(setting):
                raise UserError(f"{path} sets {setting}, which is not supported here; remove it")
        start = config.get("init_lora_weights")
        if isinstance(start, str) and not _STARTS.fullmatch(start):
            raise UserError(f"{path} has init_lora_weights={start!r:.60}; set it to true")
        for setting, number in _numbers(config):
            if number > MAX_NUMBER and setting not in _COUNTERS:
                raise UserError(
                    f"{path} has {number} in {setting!r:.60}; at most {MAX_NUMBER:,} is taken; "
                    "correct the file"
                )
        stored = stored_weights(folder)
        if stored is None:
            raise UserError(f"the adapter {str(folder)!r} has no adapter_model.safetensors")
        _check_rank(model, config, stored, path)
        _check_patterns(model, config, stored, path)


def _check_rank(model: Any, config: Mapping[str, Any], stored: Stored, path: Path) -> None:
    """Refuse ranks with which the adapter would be far larger than its file."""
    ranks = [config.get("r"), *(config.get("rank_pattern") or {}).values()]
    rank = max((rank for rank in ranks if isinstance(rank, int)), default=0)
    sides = sum(
        sum(module.weight.shape) for module in model.modules() if type(module) is torch.nn.Linear
    )
    # All layers may have an adapter, or a few of them; weights may have a quarter of the bytes.
    if rank * sides * 4 > _SLACK_BYTES + 64 * stored.size_bytes:
        raise UserError(
            f"{path} asks for adapters of rank {rank}, {rank * sides * 4 / 2**20:,.0f} MB for all "
            f"layers, and its file holds {stored.size_bytes:,} bytes; correct r, or get the files "
            "again"
        )


def _check_patterns(model: Any, config: Mapping[str, Any], stored: Stored, path: Path) -> None:
    """Refuse patterns that are not valid, or do not end, for the names that peft matches."""
    forms = [(pattern, "whole") for pattern in _texts(config, _WHOLE, only_text=True)]
    for part in _texts(config, _PARTS):
        forms += [(rf"(.*\.)?({part})$", "part"), (rf"(?:^|.*?\.){part}\.(?P<idx>\d+)\.", "part")]
        forms += [(rf"(^|.*\.){part}($|\..*)", "part")]
    if not forms:
        return
    names = [name for name, _ in model.named_modules()]
    names += [name for name, _ in model.named_parameters()]
    try:
        guarded.match(forms, [*names, *sorted(stored.names)])
    except TrialError as error:
        raise UserError(
            f"a pattern in {path} cannot be used: {error}; list the names of modules in "
            "target_modules"
        ) from error


def _texts(
    config: Mapping[str, Any], settings: tuple[str, ...], *, only_text: bool = False
) -> Iterator[str]:
    """Yield the texts in settings: a text itself, members of a list, and keys of an object."""
    for setting in settings:
        value = config.get(setting)
        if isinstance(value, str):
            yield value
        elif isinstance(value, (list, dict)) and not only_text:
            yield from (member for member in value if isinstance(member, str))


def _numbers(content: Any, setting: str = "", depth: int = 0) -> Iterator[tuple[str, int]]:
    """Yield each whole number in a config with the setting that it belongs to."""
    if isinstance(content, int) and not isinstance(content, bool):
        yield setting, content
    elif isinstance(content, (dict, list)) and depth < 8:
        members = content.items() if isinstance(content, dict) else enumerate(content)
        for key, value in members:
            inner = str(key) if depth == 0 else setting
            yield from _numbers(value, inner, depth + 1)
