"""The agents of the examples play their game with a scripted policy, over HTTP."""

import asyncio
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from grpo_core import Services, TaskKey
from grpo_core.config.settings import EndpointConfig
from grpo_core.plugins.host import PluginHost
from grpo_core.plugins.services import open_endpoint
from grpo_core.verify.engine import Verifier
from grpo_core.verify.episodes.playing import play

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))


@pytest.mark.parametrize(
    ("module", "name"), [("05_agent", "GuessByTool"), ("06_agent_library", "GuessByLibrary")]
)
def test_the_agent_of_the_example_finds_the_number_by_its_tool(module: str, name: str) -> None:
    kind = getattr(importlib.import_module(module), name)
    call = importlib.import_module("05_agent").call_text

    async def work() -> list[tuple[Any, float]]:
        endpoint = open_endpoint(PluginHost(), EndpointConfig())
        env = kind(services=Services(endpoints={"default": endpoint}))
        try:
            async with Verifier(env) as verifier:
                (task,) = await verifier.tasks([TaskKey("guess", "train", 0)])
                others = [number for number in (1, 9) if number != task.data]
                scripts = [
                    call(task.data),
                    (call(others[0]), call(task.data)),
                    ("a word", call(task.data)),
                    (*map(call, others * 2), call(others[0])),
                ]
                results = []
                for script in scripts:
                    played = await play(verifier, task, script, max_turns=env.max_turns, judge=True)
                    assert played.verdict is not None
                    assert played.verdict.error is None
                    results.append((played.rollout.returned, round(played.verdict.total, 3)))
                return results
        finally:
            await endpoint.close()

    (once, best), (twice, second), (_, _), (never, worst) = asyncio.run(work())
    assert (len(once), best) == (1, 1.0)
    assert (len(twice), second) == (2, 0.8)
    assert never is None or len(never) == 4
    assert worst <= 0.2
