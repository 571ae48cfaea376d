"""Fixtures of the trainer's tests: a model folder that costs milliseconds, and a cache that is nobody's home folder."""

from pathlib import Path
from typing import Any

import pytest

from .runs import small_settings
from .tiny import save_tiny


@pytest.fixture
def tiny_folder(tmp_path: Path) -> Path:
    """A fresh folder with a tiny random Llama and its tokenizer."""
    return save_tiny(tmp_path / "tiny")


@pytest.fixture
def settings(tiny_folder: Path) -> dict[str, Any]:
    """A run in which the tiny model learns within a few steps."""
    return small_settings(tiny_folder)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache for converted models and for the hub's, in this process and its children; the hub is switched off."""
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(
        "huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub")
    )  # the client read the variable at its import
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return tmp_path / "cache"
