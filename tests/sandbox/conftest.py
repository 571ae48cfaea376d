"""What the tests of sandboxes share."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo_sandbox.pool import JailPool

from .test_backends import opened

BACKENDS = ("bubblewrap", "docker")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave each test that takes both back ends in the default run with one of them, in turn.

    The cases with the other one are `slow`. Attacks stay with both.
    """
    tests: dict[str, dict[pytest.Item, str]] = {}
    for item in items:
        params = getattr(item, "callspec", None) and item.callspec.params.values()  # type: ignore[attr-defined]
        names = [param for param in params or () if param in BACKENDS]
        if names and item.path.parent == Path(__file__).parent and "attack" not in item.name:
            tests.setdefault(item.nodeid.partition("[")[0], {})[item] = names[0]
    taken_by_both = [backends for backends in tests.values() if len({*backends.values()}) == 2]
    for number, backends in enumerate(taken_by_both):
        for item, backend in backends.items():
            if backend != BACKENDS[number % 2]:
                item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="module")
def pool(backend: str) -> Iterator[JailPool]:
    """Yield one jail for one session after the other, so that a leftover would be seen."""
    pool = opened(backend, 1)
    yield pool
    asyncio.run(pool.close())
