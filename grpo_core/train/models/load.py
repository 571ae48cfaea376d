"""Turn the value of `--model` into a source on this disk, and a source into a model with its
tokenizer.

The value is an alias, a folder or a hub id.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from jinja2 import TemplateError

from grpo_core.config import modelcache
from grpo_core.config.config import RunConfig
from grpo_core.protocol.errors import ConfigError, UnknownNameError, UserError, did_you_mean
from grpo_core.runs.seal import DamagedError, check_manifest
from grpo_core.train.models import bundled, hub, quantized
from grpo_core.train.models.device import free_memory
from grpo_core.train.models.progress import Report
from grpo_core.train.models.quiet import load_whole, quiet_loading

HUB_ID = re.compile(r"(?P<repo>[\w.-]+(/[\w.-]+)?)(@(?P<revision>[\w./-]+))?", re.ASCII)
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Names a model that `load_model` finds without a network."""

    name: str
    """The name as the user wrote it."""
    path: str
    """A folder, or a hub id whose files are in the hub's cache."""
    revision: str | None = None
    """Branch, tag or commit of a hub id; None for the default."""
    trust_remote_code: bool = False
    """Whether the model's own Python code may be run."""
    gguf_file: str | None = None
    """File name of the weights, if they are a single GGUF file in the folder."""
    adapter_path: str | None = None
    """A peft adapter that belongs on top of the model at `path`."""


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
    report = Report(enabled=progress)
    if name in modelcache.ALIASES:
        return _from_alias(modelcache.ALIASES[name], report=report)
    path = Path(name).expanduser()
    if path.exists():
        return _from_path(name, path, trust_remote_code=trust_remote_code, progress=progress)
    return _from_hub(name, trust_remote_code=trust_remote_code, refresh=refresh, report=report)


def local_folder(source: ModelSource) -> str:
    """Return the folder that holds the files of `source`."""
    return source.path if Path(source.path).is_dir() else hub.snapshot(source.path, source.revision)


def load_tokenizer(source: ModelSource) -> transformers.PreTrainedTokenizerBase:
    """Return the tokenizer that was saved with the adapter, else that of the model.

    The end token is used for padding if the tokenizer has no padding token.
    """
    adapter_has_tokenizer = source.adapter_path is not None and any(
        (Path(source.adapter_path) / file).is_file() for file in TOKENIZER_FILES
    )
    arguments = {} if adapter_has_tokenizer else _source_arguments(source)
    try:
        with quiet_loading():
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                source.adapter_path if adapter_has_tokenizer else local_folder(source), **arguments
            )
    except (OSError, ValueError) as error:
        raise _loading_error(source, "tokenizer", error) from error
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


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
    arguments = _source_arguments(source) | {"dtype": dtype}
    if quantization != "none":
        arguments |= quantized.loading_arguments(
            source.name, quantization, dtype, device, gguf=source.gguf_file is not None
        )
    elif source.gguf_file is not None:
        arguments |= quantized.unpacking_arguments()
    try:
        model = load_whole(_auto_class(masked=masked), local_folder(source), **arguments)
    except (OSError, ValueError) as error:
        raise _loading_error(
            source, f"{'masked' if masked else 'causal'} language model", error
        ) from error
    # A hub id, not a folder of this machine: adapters name their base model by it.
    model.name_or_path = source.path
    if quantization != "none":
        quantized.patch_bitsandbytes(model)
        return model
    return model.to(device)


def is_masked(source: ModelSource, kind: str = "auto") -> bool:
    """Return whether the model fills gaps instead of continuing a text.

    Args:
        kind: as `model.kind` in the config.
    """
    if kind != "auto" or source.gguf_file is not None:
        return kind == "masked"
    try:
        with quiet_loading():
            shape = transformers.AutoConfig.from_pretrained(
                local_folder(source), **_source_arguments(source)
            )
    except (OSError, ValueError):  # loading will report the cause
        return False
    return any(name.endswith("ForMaskedLM") for name in shape.architectures or [])


def _auto_class(*, masked: bool) -> Any:
    return transformers.AutoModelForMaskedLM if masked else transformers.AutoModelForCausalLM


def refuse_what_cannot_fit(
    config: RunConfig, source: ModelSource, dtype: torch.dtype, device: torch.device
) -> None:
    """Raise ConfigError if the weights alone exceed the free memory.

    The check needs the config only; no weights are read.
    """
    if config.trainer.memory_check != "refuse" or source.gguf_file is not None:
        return
    try:
        with quiet_loading(), torch.device("meta"):
            shape = transformers.AutoConfig.from_pretrained(
                local_folder(source), **_source_arguments(source)
            )
            model = _auto_class(masked=is_masked(source, config.model.kind)).from_config(
                shape, trust_remote_code=source.trust_remote_code
            )
    except (OSError, ValueError):  # loading will report the cause
        return
    parameter_count = sum(p.numel() for p in model.parameters())
    linear_count = sum(
        module.weight.numel()
        for module in model.modules()
        if isinstance(module, torch.nn.Linear) and module is not model.get_output_embeddings()
    )
    weight_bytes = (
        parameter_count - linear_count
    ) * dtype.itemsize + linear_count * quantized.BYTES.get(
        config.model.quantization, dtype.itemsize
    )
    weights_device = torch.device("cpu") if config.model.offload else device
    free_bytes = free_memory(weights_device)
    if weight_bytes > free_bytes:
        raise ConfigError(
            f"the weights of {source.name!r} alone ({parameter_count:,} parameters) take "
            f"{weight_bytes / 2**30:.1f} GiB of memory, but only {free_bytes / 2**30:.1f} GiB are "
            f"free on {weights_device}; take a smaller model, model.dtype=bfloat16 or "
            "model.quantization=4bit (trainer.memory_check=warn tries it anyway)"
        )


def end_token_ids(model: Any, tokenizer: transformers.PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Return every token that ends an answer.

    They come from the generation config, the config, the tokenizer, and what the chat template puts
    after a turn. One source is not enough: chat models often name the end of the document in one
    place and the end of the turn in another, and a policy that is not stopped at its own end token
    babbles to the length limit.
    """
    candidates: list[int | None] = []
    for config in (
        getattr(model, "generation_config", None),
        model.config.get_text_config(decoder=True),
    ):
        eos = getattr(config, "eos_token_id", None)
        candidates += eos if isinstance(eos, (list, tuple)) else [eos]
    candidates += [tokenizer.eos_token_id, end_of_turn_id(tokenizer)]
    return tuple(dict.fromkeys(token for token in candidates if token is not None))


def _from_alias(alias: modelcache.Alias, *, report: Report) -> ModelSource:
    """Return the original weights from the hub's cache or the hub, else the conversion.

    A conversion that was made before is kept, so that runs stay comparable.
    """
    original = ModelSource(alias.name, alias.hub_id)
    converted = ModelSource(alias.name, str(bundled.bundled_folder(alias)))
    if hub.is_cached(alias.hub_id, None):
        return original
    if not modelcache.missing_files(bundled.bundled_folder(alias)):
        return converted
    try:
        hub.fetch(alias.hub_id, None, code=False, report=report)
    except (hub.HubUnreachableError, hub.HubRefusedError):
        bundled.convert_bundled(alias, report=report)
        return converted
    return original


def _from_path(name: str, path: Path, *, trust_remote_code: bool, progress: bool) -> ModelSource:
    if path.suffix == ".gguf" and path.is_file():
        return ModelSource(name, str(path.parent), gguf_file=path.name)
    _refuse_damaged(path)
    if (path / "adapter_config.json").is_file():
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
    config = json.loads((path / "adapter_config.json").read_text(encoding="utf-8"))
    base_name, revision = config.get("base_model_name_or_path"), config.get("revision")
    if not base_name:
        raise UserError(
            f"the adapter {name!r} does not say what it adapts; set base_model_name_or_path in "
            "its adapter_config.json"
        )
    try:
        base = resolve(
            f"{base_name}@{revision}" if revision else base_name,
            trust_remote_code=trust_remote_code,
            progress=progress,
        )
    except UserError as error:
        raise UserError(f"the base model of the adapter {name!r} is missing: {error}") from error
    return ModelSource(name, base.path, base.revision, trust_remote_code, base.gguf_file, str(path))


def _from_hub(name: str, *, trust_remote_code: bool, refresh: bool, report: Report) -> ModelSource:
    match = HUB_ID.fullmatch(name)
    if match is None or name.startswith("."):
        raise UserError(
            f"there is no model folder {name!r}; pass a folder, a hub id ORG/NAME[@REVISION] or "
            f"an alias: {', '.join(sorted(modelcache.ALIASES))}"
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
            f"there is no model {name!r}: a hub id needs its organisation; did you mean {whole!r}?"
        ) from error


def _source_arguments(source: ModelSource) -> dict[str, Any]:
    """Return the arguments of `from_pretrained` that `source` asks for."""
    gguf = {} if source.gguf_file is None else {"gguf_file": source.gguf_file}
    return {"trust_remote_code": source.trust_remote_code, **gguf}


def _loading_error(source: ModelSource, kind: str, error: Exception) -> UserError:
    """Return the UserError for a model or tokenizer that transformers could not load."""
    if "trust_remote_code" in str(error):
        return UserError(
            f"model {source.name!r} comes with its own Python code; set "
            "model.trust_remote_code=true if you trust its authors"
        )
    return UserError(
        f"model {source.name!r} cannot be loaded as a {kind}: {str(error).strip().splitlines()[0]}"
    )


def end_of_turn_id(tokenizer: transformers.PreTrainedTokenizerBase) -> int | None:
    """Return the special token that the chat template writes after an assistant's message.

    It is found by rendering a dialogue with a marked message. None if there is no template or no
    such token.
    """
    if not tokenizer.chat_template:
        return None
    mark = "grpo-end-of-turn-mark"
    dialogue = [{"role": "user", "content": "?"}, {"role": "assistant", "content": mark}]
    try:
        rendered = str(tokenizer.apply_chat_template(dialogue, tokenize=False))
    # Some templates refuse some dialogues, or need tools; the other sources still count.
    except (TemplateError, TypeError):
        return None
    after = rendered.rpartition(mark)[2].lstrip()
    matches = [
        (len(token.content), index)
        for index, token in tokenizer.added_tokens_decoder.items()
        if token.special and after.startswith(token.content)
    ]
    # A longer token may start with a shorter one.
    return max(matches)[1] if matches else None
