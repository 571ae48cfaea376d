"""Loads the .toml files that lie beside this file, for `grpo run --recipe`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text(encoding="utf-8"))


besiege, besiege_as_written, besiege_small = map(
    _read, ("besiege", "besiege-as-written", "besiege-small")
)
