"""A run verifies with the executor of a plugin, which lives outside of the repository: the one that `grpo new` writes."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from grpo_core import ConfigError, Environment, Group, Rollout, Spec, TaskKey, Verdict
from grpo_core.config.overrides import build_config
from grpo_core.config.settings import VerifyConfig
from grpo_core.plugins.host import PluginHost
from grpo_core.protocol.executor import Answer, EnvironmentToVerify, Executor, Request
from grpo_core.runs.trust import risky_settings
from grpo_core.verify.engine import Verifier
from grpo_core.verify.sources import Sources
from grpo_core.verify.workers.hosts import Placement
from grpo_core.verify.workers.local import LocalExecutor

from .distributions import grpo, install
from .echo import Echo

SLOW = """
import os, time
from grpo_core import Environment, Reward, Task, Verdict


class Slow(Environment):
    trusted = {trusted}

    def task(self, key):
        return Task(key, f"Say {{key.index}}.", key.index)

    def verify(self, task, rollout):
        if rollout.text == "sleep":
            time.sleep(60)
        if rollout.text == "raise":
            raise ValueError("the table is missing")
        if rollout.text == "pid":
            return Verdict({{"reward": Reward(1.0, note=str(os.getpid()))}})
        return Verdict({{"reward": Reward(float(rollout.text == str(task.data)))}})


class Grouped(Slow):
    async def verify_batch(self, groups):
        return [[Verdict({{"reward": Reward(1.0)}}) for _ in group.rollouts] for group in groups]
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of an installed executor; the far end finds it and the environments of this test."""
    monkeypatch.chdir(tmp_path)
    project = tmp_path / "project"
    assert grpo("new", "executor", "afar", "--out", str(project)).exit_code == 0
    for folder in (tmp_path, project):
        monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (project, tmp_path))))
    install(tmp_path, "grpo-executor-afar", entry_points={"afar": "grpo_executor_afar"})
    yield "afar"
    for name in [name for name in sys.modules if name.startswith("grpo_executor_afar")]:
        del sys.modules[name]


@pytest.fixture(params=[False, True], ids=["in a worker", "inline"])
def slow(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    (tmp_path / "slow.py").write_text(SLOW.format(trusted=request.param))
    return f"{tmp_path / 'slow.py'}:Slow"


def judged(
    environment: str,
    texts: Sequence[str],
    *,
    during: Callable[[], None] | None = None,
    **verify: Any,
) -> list[Verdict]:
    verify = {"cache": "off", "retries": 0, **verify}
    config = build_config([{"environment": environment, "verify": verify}])

    async def run() -> list[Verdict]:
        async with Sources.of(config, {}, host=PluginHost()) as sources:
            (source,) = sources
            tasks = await sources.tasks([TaskKey(source.name, "train", 3)])
            rollouts = [Rollout.of(text) for text in texts]
            verifying = asyncio.create_task(sources.verify(tasks, [rollouts]))
            if during is not None:
                await asyncio.sleep(1.0)
                during()
            return (await verifying)[0]

    return asyncio.run(run())


def far_ends() -> list[psutil.Process]:
    children = psutil.Process().children()
    return [child for child in children if "grpo_executor_afar.executor" in child.cmdline()]


@pytest.mark.sampled(1)
def test_verdicts_come_from_the_far_end_and_are_those_of_this_machine(
    plugin: str, slow: str
) -> None:
    texts = ["3", "4", "raise"]
    here, there = (judged(slow, texts, executor={"name": name}) for name in ("local", plugin))
    assert [verdict.total if verdict.scored else None for verdict in there] == [1.0, 0.0, None]
    assert here == there
    assert "ValueError: the table is missing" in str(there[2].error)
    (pid,) = judged(slow, ["pid"], executor={"name": plugin})
    assert int(pid.rewards["reward"].note) != os.getpid()
    assert far_ends() == []


@pytest.mark.sampled(1)
def test_a_deadline_is_kept_at_the_far_end_and_is_no_reward(plugin: str, slow: str) -> None:
    started = time.monotonic()
    late, right = judged(slow, ["sleep", "3"], timeout_seconds=1.5, executor={"name": plugin})
    assert time.monotonic() - started < 20
    assert "verify() exceeded its deadline of 1.5 s" in str(late.error)
    assert right.total == 1.0


@pytest.mark.slow
def test_a_far_end_that_dies_is_asked_again_and_then_an_error(plugin: str, slow: str) -> None:
    def kill() -> None:
        (far_end,) = far_ends()
        far_end.send_signal(signal.SIGKILL)

    (lost,) = judged(slow, ["sleep"], during=kill, executor={"name": plugin})
    assert "the child process failed: it ended with status -9" in str(lost.error)
    (retried,) = judged(
        slow, ["sleep"], during=kill, retries=1, timeout_seconds=2.0, executor={"name": plugin}
    )
    assert "exceeded its deadline of 2 s" in str(retried.error)


@pytest.mark.sampled(1)
def test_what_cannot_travel_is_refused_in_one_line(plugin: str, tmp_path: Path, slow: str) -> None:
    executor = {"name": plugin}
    with pytest.raises(ConfigError, match=r"Grouped judges whole groups .*; set .*name=local"):
        judged(slow.replace(":Slow", ":Grouped"), ["3"], executor=executor)
    with pytest.raises(ConfigError, match=r"isolation=inline keeps verifiers in this process"):
        judged(slow, ["3"], executor=executor, isolation="inline")
    given = build_config([{"environment": "echo", "verify": {"executor": executor}}])
    with pytest.raises(ConfigError, match="Echo was given as an object"):
        Sources.of(given, {"echo": Echo()}, host=PluginHost())


@pytest.mark.sampled(1)
def test_a_far_end_with_other_versions_ends_the_run_before_it_begins(
    plugin: str, slow: str, tmp_path: Path
) -> None:
    other = tmp_path / "python"
    code = "import importlib.metadata as m, runpy; m.version = lambda name: '9.9'; "
    code += "runpy.run_module('grpo_executor_afar.executor', run_name='__main__')"
    other.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}"\n')
    other.chmod(0o755)
    with pytest.raises(ConfigError, match=r"grpo-core 9\.9 instead of "):
        judged(slow, ["3"], executor={"name": plugin, "settings": {"python": str(other)}})


@pytest.mark.parametrize(
    ("executor", "message"),
    [
        ({"name": "afarr"}, "afar"),
        ({"name": "afar", "settings": {"pyton": 1}}, "verify.executor.settings.python"),
        ({"settings": {"python": 1}}, "verify.executor.settings are for an executor that a"),
    ],
)
def test_a_wrong_name_or_setting_is_one_line_before_the_model_is_loaded(
    plugin: str, tmp_path: Path, executor: dict[str, Any], message: str
) -> None:
    settings = [
        f"--set=verify.executor.{key}={value if key == 'name' else json.dumps(value)}"
        for key, value in executor.items()
    ]
    command = ["run", "--env=arithmetic", "--model=nowhere/no-such-model"]
    result = grpo(*command, f"--out={tmp_path / 'run'}", *settings)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert "no-such-model" not in result.stderr
    assert not (tmp_path / "run").exists()


def test_an_address_in_a_run_folder_needs_consent() -> None:
    executor = {"name": "far.py:Far", "settings": {"address": "10.0.0.1:6379", "actors": 4}}
    assert risky_settings({"verify": {"executor": executor}}) == {
        "verify.executor.name": "far.py:Far",
        "verify.executor.settings.address": "10.0.0.1:6379",
    }


class Recording(LocalExecutor):
    """Is not in this process, as far as the verifier knows, and keeps what it is asked."""

    in_process = False

    def __init__(self) -> None:
        self.described: list[EnvironmentToVerify] = []
        self.requests: list[Request] = []

    def open(self, environment: EnvironmentToVerify) -> Any:
        self.described.append(EnvironmentToVerify.from_json(_sent(environment.to_json())))
        place, requests = super().open(self.described[-1]), self.requests

        class Place:
            open, close = place.open, place.close

            async def ask(self, request: Request, *, seconds: float) -> Answer:
                requests.append(Request.from_json(_sent(request.to_json())))
                answer = await place.ask(requests[-1], seconds=seconds)
                return Answer.from_json(_sent(answer.to_json()))

        return Place()


def _sent(data: Any) -> Any:
    return json.loads(json.dumps(data, allow_nan=False))


def verdicts_of(env: Environment[Any], spec: Spec, executor: Executor) -> list[Verdict]:
    async def run() -> list[Verdict]:
        async with Verifier(
            env, spec=spec, overrides={}, settings=VerifyConfig(), placement=Placement(executor)
        ) as verifier:
            tasks = await verifier.tasks([TaskKey("echo", "train", 0)], 2)
            reference = await verifier.reference(tasks[0])
            assert isinstance(reference, str)
            audit = await verifier.audit(tasks[0], Rollout.of(reference))
            assert audit is None
            group = Group(tasks[0], (Rollout.of(reference), Rollout.of("no")))
            return (await verifier.verify([group.task], [group.rollouts]))[0]

    return asyncio.run(run())


def test_a_place_is_told_all_it_needs_as_json_and_no_answer_travels_to_it() -> None:
    executor = Recording()
    spec = Spec("echo", f"{Path(__file__).parent / 'echo.py'}:Echo", distribution="pytest")
    right, wrong = verdicts_of(Echo(), spec, executor)
    assert (right.total, wrong.total) == (1.0, 0.0)
    (described,) = executor.described
    assert (described.spec, described.isolated, described.stateful) == (spec, False, False)
    assert described.versions.keys() == {"python", "grpo-core", "pytest"}
    asked = [request.op for request in executor.requests]
    assert asked == ["task", "reference", "audit", "verify", "verify"]
    assert {request.draw for request in executor.requests[1:]} == {2}
