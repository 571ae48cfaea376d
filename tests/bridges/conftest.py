"""Fixtures for the tests of evaluations at an endpoint."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo_evals import policy

from .evaluated import Evaluated


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses of milliseconds, and neither a key nor a proxy of the machine."""
    monkeypatch.setattr(policy, "_FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("FRAIL_WHILE", "/nothing")


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Evaluated]:
    """A server in this process, whose answers a test decides."""
    with Evaluated(tmp_path) as server:
        yield server
