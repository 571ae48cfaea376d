"""Workers in a process namespace of their own: what they cannot reach, and what goes on as before."""

import asyncio
import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import reaching_envs as reaching
from judged import judge, keys
from processes import workers_below

from grpo_core import ConfigError, Rollout, Verdict
from grpo_core.calls import namespace
from grpo_core.config.settings import VerifyConfig
from grpo_core.verify.engine import Verifier

APART = pytest.mark.skipif(
    bool(namespace.find_bubblewrap()[1]), reason="bubblewrap can make no process namespace here"
)
SECRET = "d41d8cd98f00"


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """Another process of this user with a secret in its variables and its command line."""
    environ = {**os.environ, "API_KEY": f"CANARY-{SECRET}"}
    command = [sys.executable, "-c", "import os; os.read(0, 1)", f"CANARY-{SECRET}"]
    with subprocess.Popen(command, env=environ, stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def answers(orders: Sequence[str], pid: int, **settings: Any) -> list[Verdict]:
    asked = [f"{order}|{pid}|{SECRET}" for order in orders]
    (verdicts,), _ = judge(reaching.Reaches(), [asked], **{"workers": 1, **settings})
    return verdicts


@APART
def test_a_verifier_reaches_no_process_outside_of_its_worker(
    trainer: subprocess.Popen[bytes],
) -> None:
    orders = list(reaching.ATTACKS)
    for order, verdict in zip(orders, answers(orders, trainer.pid), strict=True):
        assert verdict.error is None, (order, verdict)
        if order != "kill of the parent":  # which has no effect, as the next verdict shows
            assert verdict.total == 0.0, (order, verdict.answer)
    assert trainer.poll() is None


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_without_a_namespace_the_same_attacks_reach_it(trainer: subprocess.Popen[bytes]) -> None:
    """So the test above can fail."""
    orders = ["environ of all", "cmdline of all", "memory", "descriptors", "kill", "pidfd"]
    verdicts = answers(orders, trainer.pid, namespace="off")
    assert [(order, v.total) for order, v in zip(orders, verdicts, strict=True)] == [
        (order, 1.0) for order in orders
    ]


@APART
def test_a_worker_has_the_user_the_files_and_the_network_that_it_had_without_a_namespace() -> None:
    (inside,) = answers(["surroundings"], 0)
    (outside,) = answers(["surroundings"], 0, namespace="off")
    assert inside.error is None
    assert inside.answer == outside.answer


@pytest.mark.slow
@APART
def test_many_workers_that_start_and_end_at_once_leave_no_process() -> None:
    def judge_much() -> None:
        answers(["kill of the parent", "kill"] * 2, os.getpid(), workers=2)

    async def run() -> None:
        chosen = VerifyConfig(workers=4, retries=0)
        for _ in range(2):
            async with Verifier(reaching.Reaches(), settings=chosen) as verifier:
                tasks = await verifier.tasks(keys(8))
                rollout = Rollout.of(f"kill|{os.getpid()}|x")
                await verifier.verify(tasks, [[rollout]] * 8)

    prctl, set_subreaper = ctypes.CDLL(None).prctl, 36
    prctl(set_subreaper, 1)  # a process without its parent would be below this one, and counted
    try:
        asyncio.run(run())
        thread = threading.Thread(target=judge_much)
        thread.start()
        thread.join()
        assert workers_below(os.getpid()) == []
    finally:
        prctl(set_subreaper, 0)


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The folder in which bubblewrap is looked for first."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    namespace.find_bubblewrap.cache_clear()
    yield tmp_path
    namespace.find_bubblewrap.cache_clear()


def test_where_no_namespace_can_be_made_workers_run_as_before_and_one_sentence_says_so(
    programs: Path,
) -> None:
    refusal = "#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2; exit 1\n"
    (programs / "bwrap").write_text(refusal)
    (programs / "bwrap").chmod(0o755)
    (verdict,) = answers(["kill"], os.getpid())
    assert verdict.total == 1.0
    for setting, said in (("auto", True), ("off", False)):
        verifier = Verifier(reaching.Reaches(), settings=VerifyConfig(namespace=setting))
        assert ("No permissions to create new namespace" in verifier.exposure) is said
        assert verifier.exposure.count("\n") == 0
    with pytest.raises(ConfigError, match=r"namespace=required.*No permissions"):
        Verifier(reaching.Reaches(), settings=VerifyConfig(namespace="required"))


def test_a_system_without_bubblewrap_is_told_what_to_install(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(programs))
    assert "apt install bubblewrap" in namespace.why_no_namespace("auto")
