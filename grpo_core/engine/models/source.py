"""Say where a model is, and read its config, which is checked before a library builds anything."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers

from grpo_core.config.gguf_files import gguf_header
from grpo_core.config.model_files import check_files, check_shape, foreign_code, read_json
from grpo_core.engine.models import hub
from grpo_core.engine.models.loading import loading_errors
from grpo_core.engine.models.quiet import quiet_loading
from grpo_core.protocol.errors import UserError

CONFIG = "config.json"


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


def local_folder(source: ModelSource) -> str:
    """Return the folder that holds the files of `source`."""
    return source.path if Path(source.path).is_dir() else hub.snapshot(source.path, source.revision)


def loading_arguments(source: ModelSource) -> dict[str, Any]:
    """Return the arguments of `from_pretrained` that `source` asks for."""
    gguf = {} if source.gguf_file is None else {"gguf_file": source.gguf_file}
    return {"trust_remote_code": source.trust_remote_code, **gguf}


def load_config(source: ModelSource) -> transformers.PretrainedConfig:
    """Return the config of a model, after its files were looked at.

    Raises:
        UserError: a file is damaged, or a number in it is larger than that of any model.
    """
    with loading_errors(source.name, "loaded"):
        folder = Path(local_folder(source))
        check_files(folder)
        if source.gguf_file is not None:
            gguf_header(folder / source.gguf_file)
        for name in (CONFIG, "generation_config.json"):
            if (folder / name).is_file():
                content = read_json(folder / name)
                check_shape(content, folder / name)
                if (setting := foreign_code(content)) and not source.trust_remote_code:
                    raise UserError(
                        f"model {source.name!r} wants code from the hub ({setting}); set "
                        "model.trust_remote_code=true if you trust its authors"
                    )
        with quiet_loading():
            return transformers.AutoConfig.from_pretrained(folder, **loading_arguments(source))


def is_masked(source: ModelSource, kind: str = "auto") -> bool:
    """Return whether the model fills gaps instead of continuing a text.

    Args:
        kind: as `model.kind` in the config.

    Raises:
        UserError: the model's config cannot be read.
    """
    if kind != "auto" or source.gguf_file is not None:
        return kind == "masked"
    names = load_config(source).architectures
    return isinstance(names, list) and any(str(name).endswith("ForMaskedLM") for name in names)


def description(*, masked: bool) -> str:
    """Return what a model is loaded as, for messages."""
    return f"loaded as a {'masked' if masked else 'causal'} language model"


def auto_class(*, masked: bool) -> Any:
    """Return the class of transformers that loads such models."""
    return transformers.AutoModelForMaskedLM if masked else transformers.AutoModelForCausalLM
