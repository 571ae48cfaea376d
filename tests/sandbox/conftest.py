"""What the tests of sandboxes share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from grpo_sandbox.pool import JailPool

from .test_backends import opened


@pytest.fixture(scope="module")
def pool(backend: str) -> Iterator[JailPool]:
    """Yield one jail for one session after the other, so that a leftover would be seen."""
    pool = opened(backend, 1)
    yield pool
    asyncio.run(pool.close())
