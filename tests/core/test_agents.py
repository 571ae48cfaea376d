"""Agents: code that drives the policy, in real worker processes, over real HTTP."""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import agent_envs as agents
import pytest
import scripted
from processes import wait_until, workers_below
from scripted import with_endpoint

from grpo_core import AgentEnvironment, ConfigError, TaskKey
from grpo_core.config.settings import VerifyConfig
from grpo_core.verify.agents.agent_scripts import run_script
from grpo_core.verify.agents.agents import AgentConversation
from grpo_core.verify.engine import Verifier
from grpo_core.verify.episodes.playing import Played, play


@asynccontextmanager
async def verifying(
    kind: type[AgentEnvironment[Any]], config: Any = None, **settings: Any
) -> AsyncIterator[Verifier]:
    """Yield a verifier, which leaves no worker."""
    chosen = VerifyConfig(**{"workers": 1, "retries": 1, **settings})
    async with with_endpoint(kind, config) as env, Verifier(env, settings=chosen) as verifier:
        yield verifier
    assert workers_below(os.getpid()) == []


def played(
    kind: type[AgentEnvironment[Any]], *scripts: str | Sequence[str], **settings: Any
) -> list[Played]:
    async def run() -> list[Played]:
        async with verifying(kind, **settings) as verifier:
            return await scripted.played(verifier, *scripts)

    return asyncio.run(run())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", [agents.Asking, agents.Trusted, agents.Judged])
def test_agents_ask_the_policy_and_what_they_return_is_judged(
    kind: type[AgentEnvironment[Any]],
) -> None:
    scripts = [("wrong", "right", "end"), ("end",), ("a", "b", "c", "d", "e", "end")]
    attempts = played(kind, *scripts)
    passed = [attempt.verdict.passed for attempt in attempts if attempt.verdict]
    assert passed == [True, False, False]
    first, _, last = (attempt.rollout for attempt in attempts)
    assert first.returned["heard"] == ["wrong", "right", "end"]
    assert (first.returned["pid"] == os.getpid()) == kind.trusted
    said = [message.content for message in first.messages]
    assert said == ["wrong", "heard 1", "right", "heard 2", "end"]
    assert (last.finish, last.returned, last.error) == ("length", None, "")
    assert len(last.messages) == 9  # max_turns is 5, and the sixth request was refused


@pytest.mark.slow
def test_the_attempts_of_many_agents_do_not_mix() -> None:
    scripts = [[f"say {n} {turn}" for turn in range(n % 3)] + ["end"] for n in range(40)]
    attempts = played(agents.Asking, *scripts, workers=2)
    assert [attempt.rollout.returned["heard"] for attempt in attempts] == scripts
    assert [attempt.rollout.returned["task"] for attempt in attempts] == list(range(40))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("raise", "the agent gave up"),
        ("hang", "exceeded its deadline of 3 s"),
        ("block", "event loop is blocked"),
        ("exit", "exit"),
        ("sysexit", "sys.exit(1)"),
        ("set", "not JSON data"),
        ("deep", "not JSON data"),
        ("silence", "without a request"),
        ("large", "cannot be sent"),
    ],
)
def test_an_agent_that_fails_makes_an_error_and_no_reward(said: str, words: str) -> None:
    kind = agents.Silent if said == "silence" else agents.Failing
    (attempt,) = played(kind, said, retries=0)
    assert attempt.rollout.finish == "error"
    assert attempt.verdict is not None
    assert attempt.verdict.error is not None
    assert words in attempt.verdict.error


@pytest.mark.slow
def test_an_agent_whose_worker_is_lost_is_run_again(tmp_path: Path) -> None:
    config = agents.Counted(str(tmp_path / "losses"))
    (attempt,) = played(agents.Lost, "right", retries=0, config=config)
    assert attempt.verdict is not None
    assert attempt.verdict.passed
    assert (tmp_path / "losses").read_text() == "xxxx"


def test_a_program_is_an_agent() -> None:
    (attempt,) = played(agents.Command, "right")
    assert attempt.verdict is not None
    assert attempt.verdict.passed, attempt.verdict.answer
    assert attempt.rollout.returned["stderr"].endswith("[]\n")  # it worked in an empty folder


@pytest.mark.parametrize("isolation", ["process", "inline"])
def test_a_program_gets_the_variables_of_a_worker_and_those_that_the_settings_name(
    monkeypatch: pytest.MonkeyPatch, isolation: str
) -> None:
    for name in ("HF_TOKEN", "GRPO_DSN", "MY_DATA"):
        monkeypatch.setenv(name, "value")
    (attempt,) = played(
        agents.Environs, "right", isolation=isolation, worker_environment=("MY_DATA",)
    )
    variables = json.loads(attempt.rollout.returned["stderr"].splitlines()[0])
    assert {"MY_DATA", "PATH", "OPENAI_API_KEY"} <= variables.keys()
    assert not {"HF_TOKEN", "GRPO_DSN"} & variables.keys()


def test_a_program_that_hangs_is_killed_with_what_it_started() -> None:
    started = time.monotonic()
    (attempt,) = played(agents.Hanging, "right", retries=0)
    assert "exceeded its deadline of 1 s" in str(attempt.verdict and attempt.verdict.error)
    assert time.monotonic() - started < 15


@pytest.mark.slow
async def test_the_time_in_which_the_policy_answers_is_not_the_agents() -> None:
    async def late(request: Any, heard: Any) -> str:
        await asyncio.sleep(4)  # more than agent_seconds
        return "right"

    async with verifying(agents.Failing, retries=0) as verifier:
        (task,) = await verifier.tasks([TaskKey("agents", "train", 0)])
        conversation = verifier.conversation(task)
        assert isinstance(conversation, AgentConversation)
        attempt = await run_script(conversation, task, lambda: late, max_turns=5)
    assert attempt.rollout.returned == {"heard": ["right"]}


@pytest.mark.slow
async def test_nothing_is_left_after_100_agents() -> None:
    import gc

    import psutil

    me = psutil.Process()
    before = me.num_fds()
    async with verifying(agents.Asking) as verifier:
        (task,) = await verifier.tasks([TaskKey("agents", "train", 0)])
        counts = []
        for _ in range(4):
            script = ["a", "end"]
            playing = [play(verifier, task, script, max_turns=4, judge=True) for _ in range(25)]
            await asyncio.gather(*playing)
            gc.collect()
            worker = psutil.Process(max(workers_below(me.pid)))
            counts.append((me.num_fds(), len(workers_below(me.pid)), worker.num_fds()))
    assert max(last - first for first, last in zip(counts[0], counts[-1], strict=True)) <= 2, counts
    assert wait_until(lambda: me.num_fds() <= before)


@pytest.mark.parametrize(
    ("kind", "words"), [(agents.Neither, "neither agent"), (agents.WithReply, "reply")]
)
def test_a_class_that_is_not_complete_is_refused_before_anything_runs(
    kind: type[AgentEnvironment[Any]], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        Verifier(kind())


async def test_without_an_endpoint_the_message_says_what_is_missing() -> None:
    async with Verifier(agents.Asking()) as verifier:
        (task,) = await verifier.tasks([TaskKey("agents", "train", 0)])
        with pytest.raises(ConfigError, match="endpoint"):
            verifier.conversation(task)
