"""Fixtures of the core's tests: a place to install distributions into, and the toy environment in it."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import grpo_core

from .distributions import install_toy

# Workers import environments from here, and from the catalogue of faults what these are made from.
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "kit")]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on sys.path to install into; what is imported from it is forgotten afterwards."""
    monkeypatch.delenv("GRPO_DISABLE_PLUGINS", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    roots = [
        str(tmp_path),
        str(Path(grpo_core.__file__).parents[1]),
        os.environ.get("PYTHONPATH", ""),
    ]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, roots)))  # for child processes
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def toy(site: Path) -> Path:
    """A folder in which the environment `toy` is installed: it asks for the square of the index."""
    install_toy(site)
    return site
