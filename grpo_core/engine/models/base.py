"""Name the model that a run starts from, so that what it saves can be loaded elsewhere, too.

An adapter is loaded with its base model, which its config names. A folder in a cache of this user
means nothing on another machine; the hub id that it came from does.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from grpo_core.config.model_files import read_json
from grpo_core.config.modelcache import ALIASES, BASE_NOTE, Alias
from grpo_core.engine.models.bundled import CONVERSION, bundled_folder
from grpo_core.engine.models.source import ModelSource
from grpo_core.protocol.errors import UserError

_SNAPSHOT = re.compile(r"models--(?P<owner>[\w.-]+?)--(?P<name>[\w.-]+)", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class Base:
    """Name a base model for those who load what was trained on it."""

    name: str
    """A hub id, or a folder as the user gave it."""
    revision: str | None = None
    """Branch, tag or commit of a hub id; None for the default."""
    conversion: Path | None = None
    """The file that says what the weights were converted from, where they are not the hub's."""


def base_of(source: ModelSource) -> Base:
    """Return the name of the model at `source`, without its adapter."""
    path = Path(source.path)
    if not path.is_dir():
        return Base(source.path, source.revision)
    for alias in ALIASES.values():
        if path.resolve() == bundled_folder(alias).resolve():
            return Base(alias.hub_id, None, path / CONVERSION)
    repo = _SNAPSHOT.fullmatch(path.parent.parent.name)
    if repo is not None and path.parent.name == "snapshots" and _COMMIT.fullmatch(path.name):
        return Base(f"{repo['owner']}/{repo['name']}", path.name)
    return Base(str(path / source.gguf_file if source.gguf_file is not None else path))


def write_note(base: Base, folder: Path) -> None:
    """Write into an adapter's folder which conversion its base model was, if it was one.

    The hub's weights are others: the conversion comes from quantised ones.

    Raises:
        OSError: the file cannot be written.
    """
    if base.conversion is not None and base.conversion.is_file():
        shutil.copyfile(base.conversion, folder / BASE_NOTE)


def converted_base(name: str, adapter: Path) -> Alias | None:
    """Return the alias whose conversion an adapter was trained on; None for any other model.

    Args:
        name: the base model as the adapter names it.
        adapter: the folder of the adapter.
    """
    alias = next((alias for alias in ALIASES.values() if alias.hub_id == name), None)
    if alias is None or not (adapter / BASE_NOTE).is_file():
        return None
    try:
        return alias if read_json(adapter / BASE_NOTE).get("sha256") == alias.wheel.sha256 else None
    except UserError:
        return None
