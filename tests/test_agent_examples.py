"""The agents of the examples play their game with a scripted policy, over HTTP."""

import importlib
import sys
from pathlib import Path

import pytest

from grpo_core import TaskKey
from grpo_core.verify.engine import Verifier
from grpo_core.verify.episodes.playing import play

from .core.scripted import with_endpoint

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))


@pytest.mark.parametrize(
    ("module", "name"), [("05_agent", "GuessByTool"), ("06_agent_library", "GuessByLibrary")]
)
async def test_the_agent_of_the_example_finds_the_number_by_its_tool(
    module: str, name: str
) -> None:
    kind = getattr(importlib.import_module(module), name)
    call = importlib.import_module("05_agent").call_text
    results = []
    async with with_endpoint(kind) as env, Verifier(env) as verifier:
        (task,) = await verifier.tasks([TaskKey("guess", "train", 0)])
        others = [number for number in (1, 9) if number != task.data]
        scripts = [
            call(task.data),
            (call(others[0]), call(task.data)),
            ("a word", call(task.data)),
            (*map(call, others * 2), call(others[0])),
        ]
        for script in scripts:
            played = await play(verifier, task, script, max_turns=env.max_turns, judge=True)
            assert played.verdict is not None
            assert played.verdict.error is None
            results.append((played.rollout.returned, round(played.verdict.total, 3)))
    (once, best), (twice, second), (_, _), (never, worst) = results
    assert (len(once), best) == (1, 1.0)
    assert (len(twice), second) == (2, 0.8)
    assert never is None or len(never) == 4
    assert worst <= 0.2
