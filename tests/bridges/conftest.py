"""Fixtures for the tests of evaluations at an endpoint."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from grpo_core.bridges.endpoint import policy

from ..plugins.endpoint import Endpoint


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses of milliseconds, and neither a key nor a proxy of the machine."""
    monkeypatch.setattr(policy, "_FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("FRAIL_WHILE", "/nothing")


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    """A server in this process, whose answers a test decides."""
    server = Endpoint()
    yield server
    server.close()
