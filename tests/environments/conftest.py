"""What the tests of several environments need."""

import asyncio
from collections.abc import Iterator

import pytest

from grpo_core import ConfigError, Services
from grpo_sandbox.auto import Auto, AutoConfig

from ..sandbox.engines import missing


@pytest.fixture(scope="module")
def services() -> Iterator[Services]:
    try:
        sandbox = Auto(AutoConfig(jails=2))
    except ConfigError as error:
        missing(str(error))
        raise
    yield Services(sandboxes={"default": sandbox})
    asyncio.run(sandbox.close())
