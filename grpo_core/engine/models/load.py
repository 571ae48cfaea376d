"""Turn the value of `--model` into a source on this disk, and a source into a model with its
tokenizer.

The value is an alias, a folder or a hub id.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import torch
import transformers

from grpo_core.config import modelcache
from grpo_core.config.model_files import check_kind, read_json
from grpo_core.engine.models import bundled, guarded, hub, quantized
from grpo_core.engine.models.base import base_of, converted_base
from grpo_core.engine.models.fitting import check_stored
from grpo_core.engine.models.loading import loading_errors
from grpo_core.engine.models.progress import LoadingReport
from grpo_core.engine.models.quiet import load_whole
from grpo_core.engine.models.source import (
    ModelSource,
    auto_class,
    description,
    is_masked,
    loading_arguments,
    local_folder,
)
from grpo_core.engine.models.tokenizer import TOKENIZER, tokenizer_folder, trial_of
from grpo_core.protocol.errors import UnknownNameError, UserError, did_you_mean
from grpo_core.runs.seal import MANIFEST, DamagedError, check_manifest

HUB_ID = re.compile(r"(?P<repo>[\w.-]+(/[\w.-]+)?)(@(?P<revision>[\w./-]+))?", re.ASCII)
ADAPTER = "adapter_config.json"


def resolve(
    name: str, *, trust_remote_code: bool = False, progress: bool = True, refresh: bool = False
) -> ModelSource:
    """Find the model `name` and download it if it is not on this disk.

    Args:
        name: an alias, a folder, a GGUF file or a hub id.
        trust_remote_code: whether the model's own Python code may be run.
        progress: show the progress on stderr.
        refresh: ask the hub for a newer version first; else a cached model is used without asking.

    Raises:
        UserError: there is no such model, or it is damaged or cannot be fetched.
    """
    guarded.prepare()
    report = LoadingReport(enabled=progress)
    if name in modelcache.ALIASES:
        return _from_alias(modelcache.ALIASES[name], report=report)
    with loading_errors(name, "found"):
        path = Path(name).expanduser()
        if os.path.exists(path):  # unlike Path.exists, this is False for an invalid name
            return _from_path(name, path, trust_remote_code=trust_remote_code, progress=progress)
    return _from_hub(name, trust_remote_code=trust_remote_code, refresh=refresh, report=report)


def resolve_config(name: str, *, progress: bool = True) -> ModelSource:
    """Find the config of the model `name`; of one on the hub, no weights are downloaded.

    Args:
        name: as for `resolve`; of a folder, a config.json suffices.
        progress: show the progress on stderr.

    Raises:
        UserError: there is no such model, or its config cannot be fetched.
    """
    path = Path(name).expanduser()
    if name not in modelcache.ALIASES and (path / "config.json").is_file():
        return ModelSource(name, str(path))
    match = HUB_ID.fullmatch(name)
    if name in modelcache.ALIASES or os.path.exists(path) or match is None:
        return resolve(name, progress=progress)
    repo, revision = match["repo"], match["revision"]
    if not hub.has_config(repo, revision):
        report = LoadingReport(enabled=progress)
        try:
            hub.fetch(repo, revision, code=False, report=report, only=hub.DESCRIPTIONS)
        except (hub.HubUnreachableError, hub.HubRefusedError) as error:
            _suggest_organisation(name, error)
            raise
    return ModelSource(name, repo, revision)


def load_model(
    source: ModelSource,
    *,
    dtype: torch.dtype,
    device: torch.device,
    quantization: str = "none",
    kind: str = "auto",
) -> transformers.PreTrainedModel:
    """Load the language model at `source.path`, in eval mode.

    An adapter is not applied here: the policy owns adapters.

    Args:
        quantization: as `model.quantization` in the config.
        kind: as `model.kind` in the config.

    Raises:
        UserError: the model cannot be loaded.
    """
    masked = is_masked(source, kind)
    with loading_errors(source.name, description(masked=masked)):
        check_stored(source, masked=masked)
        if (path := tokenizer_folder(source)[0] / TOKENIZER).is_file():
            trial_of(path)  # it is awaited where the tokenizer is loaded
    arguments = loading_arguments(source) | {"dtype": dtype}
    if quantization != "none":
        arguments |= quantized.loading_arguments(
            source.name, quantization, dtype, device, gguf=source.gguf_file is not None
        )
    elif source.gguf_file is not None:
        arguments |= quantized.unpacking_arguments()
    with loading_errors(source.name, description(masked=masked)):
        model = load_whole(auto_class(masked=masked), local_folder(source), **arguments)
    model.name_or_path = base_of(source).name  # adapters name their base model by it
    if quantization != "none":
        quantized.patch_bitsandbytes(model)
        return model
    return model.to(device)


def _from_alias(alias: modelcache.Alias, *, report: LoadingReport) -> ModelSource:
    """Return the original weights from the hub's cache or the hub, else the conversion.

    A conversion that was made before is kept, so that runs stay comparable.
    """
    original = ModelSource(alias.name, alias.hub_id)
    if hub.is_cached(alias.hub_id, None):
        return original
    if not modelcache.missing_files(bundled.bundled_folder(alias)):
        return _converted(alias, report=report)
    try:
        hub.fetch(alias.hub_id, None, code=False, report=report)
    except (hub.HubUnreachableError, hub.HubRefusedError):
        return _converted(alias, report=report)
    return original


def _converted(alias: modelcache.Alias, *, report: LoadingReport) -> ModelSource:
    """Return the conversion, which is made if there is none."""
    if modelcache.missing_files(bundled.bundled_folder(alias)):
        bundled.convert_bundled(alias, report=report)
    return ModelSource(alias.name, str(bundled.bundled_folder(alias)))


def _from_path(name: str, path: Path, *, trust_remote_code: bool, progress: bool) -> ModelSource:
    check_kind(path)
    if path.suffix == ".gguf" and path.is_file():
        return ModelSource(name, str(path.parent), gguf_file=path.name)
    _refuse_damaged(path)
    if (path / ADAPTER).is_file():
        return _from_adapter(name, path, trust_remote_code=trust_remote_code, progress=progress)
    missing = modelcache.missing_files(path)
    if missing and (path / "final").is_dir():  # a run
        return _from_path(
            name, path / "final", trust_remote_code=trust_remote_code, progress=progress
        )
    ggufs = [file.name for file in sorted(path.glob("*.gguf"))]
    if missing and len(ggufs) == 1:
        return ModelSource(name, str(path), gguf_file=ggufs[0])
    if missing:
        raise UserError(
            f"{name!r} is not a model folder: it has no {' and no '.join(missing)} "
            f"({_advice(path, ggufs)})"
        )
    return ModelSource(name, str(path), trust_remote_code=trust_remote_code)


def _refuse_damaged(path: Path) -> None:
    """Raise UserError if a file that a run has saved in `path` is not as it was written."""
    if (path / MANIFEST).exists():
        files = read_json(path / MANIFEST).get("files")
        for name in files if isinstance(files, Mapping) else ():
            if not (path / name).resolve().is_relative_to(path.resolve()):
                raise UserError(f"{path / MANIFEST} names a file outside its folder: {name!r}")
            if (path / name).exists():
                check_kind(path / name)
    try:
        check_manifest(path)
    except DamagedError as error:
        other_remedy = (
            f"; or remove that folder and continue the run with --resume {path.parent}, which "
            "writes it again from its last checkpoint"
            if path.name == "final" and (path.parent / "checkpoints").is_dir()
            else ""
        )
        raise UserError(
            f"the weights in {path} are damaged: {error}; restore them from a copy{other_remedy}"
        ) from None


def _advice(path: Path, ggufs: list[str]) -> str:
    """Return why `path` is not a model folder and what to pass instead."""
    if (path / "checkpoints").is_dir():
        return f"it is a run that is not finished; continue it with --resume {path}"
    if ggufs:
        return f"it holds {len(ggufs)} GGUF files; name one of them: {', '.join(ggufs)}"
    if not path.is_dir():
        return "it is a file; pass a folder, or a .gguf"
    return f"found: {', '.join(sorted(file.name for file in path.iterdir())[:5]) or 'nothing'}"


def _from_adapter(name: str, path: Path, *, trust_remote_code: bool, progress: bool) -> ModelSource:
    """Return the base model of an adapter as the source, with the adapter on top."""
    config = read_json(path / ADAPTER)
    base_name, revision = config.get("base_model_name_or_path"), config.get("revision")
    if not isinstance(base_name, str) or not base_name:
        raise UserError(
            f"the adapter {name!r} does not say what it adapts (found: {base_name!r:.80}); set "
            "base_model_name_or_path in its adapter_config.json to a model"
        )
    if (Path(base_name) / ADAPTER).is_file() or (Path(base_name) / "final" / ADAPTER).is_file():
        raise UserError(
            f"the adapter {name!r} adapts {base_name!r}, which is an adapter itself; merge that "
            "into its base model (grpo export) and name the result in base_model_name_or_path"
        )
    alias = converted_base(base_name, path)
    try:
        base = (
            _converted(alias, report=LoadingReport(enabled=progress))
            if alias is not None
            else resolve(
                f"{base_name}@{revision}" if revision else base_name,
                trust_remote_code=trust_remote_code,
                progress=progress,
            )
        )
    except UserError as error:
        raise UserError(f"the base model of the adapter {name!r} is missing: {error}") from error
    return ModelSource(name, base.path, base.revision, trust_remote_code, base.gguf_file, str(path))


def _from_hub(
    name: str, *, trust_remote_code: bool, refresh: bool, report: LoadingReport
) -> ModelSource:
    match = HUB_ID.fullmatch(name)
    if match is None or name.startswith("."):
        raise UserError(
            f"the model folder {name!r} does not exist; pass a folder, a hub id "
            f"ORG/NAME[@REVISION] or an alias: {', '.join(sorted(modelcache.ALIASES))}"
        )
    repo, revision = match["repo"], match["revision"]
    if "/" not in repo and did_you_mean(repo, modelcache.ALIASES) != ".":
        raise UnknownNameError(
            "model", name, modelcache.ALIASES, hint="`grpo model list` shows what is cached."
        )
    cached = hub.is_cached(repo, revision)
    if refresh or trust_remote_code or not cached:  # the cached files may lack the code
        try:
            hub.fetch(repo, revision, code=trust_remote_code, report=report)
        except (hub.HubUnreachableError, hub.HubRefusedError) as error:
            if not cached:
                _suggest_organisation(name, error)
            if not cached or isinstance(error, hub.HubRefusedError):
                raise
            report.say(f"The hub cannot be reached; the cached copy of {name} is used")
    return ModelSource(name, repo, revision, trust_remote_code)


def _suggest_organisation(name: str, error: UserError) -> None:
    """Raise UserError with the whole hub id, if `name` lacks the organisation of a known family.

    Args:
        name: a model that was not found.
        error: why not.
    """
    if "/" not in name and (whole := hub.whole_name(name)) is not None:
        raise UserError(
            f"{name!r} is not a model: a hub id needs its organisation; did you mean {whole!r}?"
        ) from error
