"""Agents in worker processes whose programs run in jails, and reach the policy's endpoint from there and nothing else."""

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from grpo_core import Environment
from grpo_core.config.settings import VerifyConfig
from grpo_core.verify.engine import Verifier
from grpo_core.verify.episodes.playing import Played

from ..core import scripted
from ..core.scripted import with_endpoint
from .test_backends import backend as backend
from .test_backends import marked as marked
from .test_backends import opened

sys.path.insert(0, str(Path(__file__).parent))  # so that workers find the module of agents

import jailed_agents as agents


@pytest.fixture
def socket(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A path for the endpoint's socket, short enough for one."""
    return tmp_path_factory.mktemp("s") / "e"


def played(
    kind: type[Environment[Any]],
    *scripts: str | Sequence[str],
    backend: str,
    socket: Path,
    isolation: Any = "auto",
) -> list[Played]:
    async def work() -> list[Played]:
        sandbox = opened(backend, 1)
        settings = VerifyConfig(workers=2, retries=0, isolation=isolation)
        try:
            async with (
                with_endpoint(kind, socket=socket, default=sandbox) as env,
                Verifier(env, settings=settings) as verifier,
            ):
                return await scripted.played(verifier, *scripts)
        finally:
            await sandbox.close()

    return asyncio.run(work())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("isolation", ["auto", "inline"])
def test_an_agent_in_a_jail_drives_the_policy(isolation: str, backend: str, socket: Path) -> None:
    """From a worker process or this one; attempts at the same time do not mix."""
    scripts = [("wrong", "right", "end"), ("end",), ("a", "b", "c", "end"), ("right", "end")]
    attempts = played(agents.Jailed, *scripts, backend=backend, socket=socket, isolation=isolation)
    returned = [attempt.rollout.returned for attempt in attempts]
    assert [each["said"] for each in returned] == [list(script) for script in scripts], returned
    passed = [attempt.verdict.passed for attempt in attempts if attempt.verdict]
    assert passed == [True, False, False, True]
    assert ({each["pid"] for each in returned} == {os.getpid()}) == (isolation == "inline")


@pytest.mark.slow
def test_a_worker_reaches_only_the_socket_that_its_agent_was_given(
    backend: str, socket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not another one by its path, nor the right one by another path, nor its folder."""
    (attempt,) = played(agents.Straying, ("end",), backend=backend, socket=socket)
    for text in attempt.rollout.returned:
        assert "reaches no socket but that of the endpoint" in text


def test_an_episode_that_was_given_no_socket_reaches_none(backend: str, socket: Path) -> None:
    (attempt,) = played(agents.Game, ("x",), backend=backend, socket=socket)
    assert attempt.verdict is not None
    assert "reaches no socket but that of the endpoint" in (attempt.verdict.answer or "")
