"""Loads recipe.toml, which lies beside this file, for `grpo run --recipe`."""

from __future__ import annotations

import tomllib
from pathlib import Path

recipe = tomllib.loads(Path(__file__).with_name("recipe.toml").read_text(encoding="utf-8"))
