"""Provides each TOML file of this folder as an attribute with the file's name."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


def __getattr__(name: str) -> dict[str, Any]:
    """Load the recipe `name`."""
    path = FOLDER / f"{name}.toml"
    if not path.is_file():
        raise AttributeError(f"there is no recipe {name!r}")
    return tomllib.loads(path.read_text(encoding="utf-8"))
