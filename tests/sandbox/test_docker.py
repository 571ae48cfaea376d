"""What only Docker can do: lose its daemon or its containers, be swept, be given an image."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import urllib3
from typer.testing import CliRunner

from grpo_core import ConfigError, Limits, Program
from grpo_core.calls.deadline import within
from grpo_core.cli.app import app
from grpo_core.config.overrides import build_config
from grpo_core.protocol.errors import RunStoppedError
from grpo_core.runs.lines import read_lines
from grpo_sandbox.docker import LABEL, Docker, DockerConfig

from ..core.processes import wait_until
from ..train.tiny import save_tiny
from .engines import IMAGE, Engine, engine_of_its_own

PROGRAM = Program("def f(x): return x + 1", "f", [(1,)])
ENDS_ITSELF = Program("import os\ndef f(x): os.kill(os.getpid(), 9)", "f", [(1,)])


@pytest.fixture(scope="module")
def shared_engine() -> Iterator[Engine]:
    with engine_of_its_own(with_image=True) as engine:
        yield engine


@pytest.fixture
def engine(shared_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """One without containers; what a test that failed has left is removed."""
    monkeypatch.setenv("DOCKER_HOST", shared_engine.host)
    yield shared_engine
    if left := containers(shared_engine):
        shared_engine.docker("rm", "-f", *left)


def containers(engine: Engine) -> list[str]:
    """Return the containers of the sandbox.

    A daemon that was killed may later list a container that it does not have: there is nothing to
    inspect or to remove.
    """
    names = engine.docker("ps", "-aq", "--filter", f"label={LABEL}").stdout.split()
    return [name for name in names if engine.docker("inspect", name, check=False).returncode == 0]


def running(engine: Engine) -> list[str]:
    return engine.docker("ps", "-q", "--filter", f"label={LABEL}").stdout.split()


def wait_until_gone(engine: Engine) -> None:
    assert wait_until(lambda: not containers(engine), 30)


@pytest.fixture
def open_pool(engine: Engine) -> Iterator[Callable[..., Docker]]:
    """Open a pool with one jail, which is closed at the end and then leaves no container."""
    pools: list[Docker] = []

    def opened(**settings: Any) -> Docker:
        pools.append(Docker(DockerConfig(**{"jails": 1, **settings})))
        return pools[-1]

    yield opened
    for pool in pools:
        asyncio.run(pool.close())
    wait_until_gone(engine)


def sleeper(seconds: float, inputs: int = 1, limits: Limits | None = None) -> Program:
    """Return a program that sleeps, and then returns its input."""
    source = f"import time\ndef f(x):\n    time.sleep({seconds})\n    return x"
    return Program(source, "f", [(i,) for i in range(inputs)], limits or Limits())


async def busy_container(engine: Engine) -> str:
    """One in which a program is running: beside the supervisor there is its child."""
    while True:
        for name in await asyncio.to_thread(running, engine):
            processes = await asyncio.to_thread(
                engine.docker, "top", name, "-eo", "pid", check=False
            )
            if len(processes.stdout.splitlines()) > 2:
                return name
        await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_a_program_that_always_loses_its_container_is_at_fault_itself(
    engine: Engine, open_pool: Callable[..., Docker]
) -> None:
    pool = open_pool()
    # Longer than a busy machine takes to see and kill the container; the program itself never ends.
    batch = asyncio.ensure_future(pool.run([sleeper(50, limits=Limits(wall_seconds=60))]))
    for _ in range(5):
        await asyncio.to_thread(engine.docker, "kill", await busy_container(engine))
    outcome = (await batch)[0][0]
    assert (outcome.status, outcome.suspected) == ("signal", True)
    assert outcome.error.startswith(
        "it failed 5 times where a known-good program ran; the last time: the jail container"
    )


ALWAYS_RUNS = """
from grpo_core import Environment, Program, Reward, Task, Verdict

class AlwaysRuns(Environment):
    needs = frozenset({"sandbox"})
    max_new_tokens = 4

    def task(self, key):
        return Task(key, "x", None)

    async def averify(self, task, rollout):
        program = Program("import time\\ndef f(x):\\n    time.sleep(1)\\n    return x", "f", [(1,)])
        await self.services.sandbox().run([program])
        return Verdict({"reward": Reward(0.0)})
"""


def start_trainer(tmp_path: Path, **more: int) -> subprocess.Popen[bytes]:
    """Start a run with programs in containers; it writes what it says to `log`."""
    (tmp_path / "always.py").write_text(ALWAYS_RUNS)
    settings = {"model.name": save_tiny(tmp_path / "tiny"), "model.dtype": "float32"}
    settings |= {"sandbox.name": "docker", "eval.tasks": 0, **more}
    command = [sys.executable, "-c", "from grpo_core.cli import main; main()", "run"]
    command += ["--env", f"{tmp_path / 'always.py'}:AlwaysRuns"]
    command += [f"--set={key}={value}" for key, value in settings.items()]
    with (tmp_path / "log").open("wb") as log:
        return subprocess.Popen([*command, "--out", str(tmp_path / "run")], stdout=log, stderr=log)


@pytest.mark.slow
def test_kill_9_of_a_trainer_in_the_middle_of_a_step_leaves_no_container_and_no_process(
    engine: Engine, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    trainer = start_trainer(tmp_path)
    wait_until(lambda: bool(running(engine)) or trainer.poll() is not None, 120)
    assert trainer.poll() is None, (tmp_path / "log").read_text()
    children = _children(trainer.pid)
    trainer.send_signal(signal.SIGKILL)
    trainer.wait()
    wait_until_gone(engine)
    assert wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children), 30)


def _children(parent: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{parent}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            found += map(int, (task / "children").read_text().split())
    return found


@pytest.mark.slow
async def test_a_daemon_that_is_killed_and_comes_back_costs_no_verdict_and_is_said_once(
    engine: Engine, open_pool: Callable[..., Docker], caplog: pytest.LogCaptureFixture
) -> None:
    pool = open_pool(jails=2)
    batch = asyncio.ensure_future(within(pool.run([sleeper(0.2, 20)]), 2.0))
    await asyncio.sleep(1)
    await asyncio.to_thread(engine.stop, signal.SIGKILL)
    await asyncio.sleep(3)
    await asyncio.to_thread(engine.start)
    found = [outcome.value for outcome in (await batch)[0]]
    assert found == list(range(20))  # though its deadline of 2 s is long past
    messages = [
        record.getMessage() for record in caplog.records if record.name == "grpo_sandbox.blame"
    ]
    assert len(messages) == 2
    assert messages[0].startswith("the sandbox docker is unavailable: Docker could not")
    assert messages[1].startswith("the sandbox docker is available again after")


@pytest.mark.heavy
async def test_a_daemon_that_is_killed_and_comes_back_loses_no_session(
    engine: Engine, open_pool: Callable[..., Docker]
) -> None:
    """Its containers end with it: one session is idle then, and one in the middle of a command."""
    pool = open_pool()
    idle, busy = await pool.session({"a": "1"}), await pool.session({"a": "2"})
    await idle.exec("cat a a > b")
    working = asyncio.ensure_future(busy.exec("sleep 2; cat a; echo done > b"))
    await asyncio.sleep(0.5)
    await asyncio.to_thread(engine.stop, signal.SIGKILL)
    await asyncio.sleep(1)
    await asyncio.to_thread(engine.start)
    found = (await working).stdout, (await idle.exec("cat b")).stdout, await busy.read("b")
    for session in (idle, busy):
        await session.close()
    assert found == ("2", "11", b"done\n")


@pytest.mark.parametrize("seconds", [3, pytest.param(20, marks=pytest.mark.heavy)])
async def test_containers_that_are_paused_cost_no_verdict(
    engine: Engine, open_pool: Callable[..., Docker], seconds: float
) -> None:
    """For less time than a call may take more than its limit, and for more."""
    pool = open_pool(jails=2)
    program = sleeper(0.4, 10, Limits(wall_seconds=2))
    batch = asyncio.ensure_future(pool.run([program]))
    await busy_container(engine)
    names = running(engine)
    engine.docker("pause", *names)
    await asyncio.sleep(seconds)
    engine.docker("unpause", *names, check=False)
    assert [outcome.value for outcome in (await batch)[0]] == list(range(10))


async def test_a_jail_that_the_kernel_ends_for_the_programs_memory_is_the_programs_end(
    engine: Engine, open_pool: Callable[..., Docker]
) -> None:
    """Its choice is made to fall on the supervisor, which holds the output and is otherwise the last to go."""
    pool = open_pool(memory_mb=80)
    source = """
import time
def f(x):
    time.sleep(3)
    for _ in range(45): print("x" * (1 << 20))
    kept = [bytearray(1 << 20) for _ in range(60)]
    time.sleep(20)
"""
    limits = Limits(memory_mb=1000, wall_seconds=30, output_bytes=50_000_000)
    batch = asyncio.ensure_future(pool.run([Program(source, "f", [(1,)], limits)]))
    busy = await busy_container(engine)
    supervisor = engine.docker("top", busy, "-eo", "pid").stdout.split()[1]
    await asyncio.to_thread(Path(f"/proc/{supervisor}/oom_score_adj").write_text, "1000")
    outcome = (await batch)[0][0]
    assert (outcome.status, outcome.suspected) == ("oom", False), outcome
    assert pool.started == 0  # the first jail was enough


def test_a_container_that_the_daemon_made_without_an_answer_is_removed_with_the_pool(
    engine: Engine, open_pool: Callable[..., Docker]
) -> None:
    assert asyncio.run(open_pool().run([PROGRAM]))[0][0].value == 2
    (known,) = containers(engine)
    label = f"{LABEL}.pool"
    form = f'{{{{index .Config.Labels "{label}"}}}}'
    number = engine.docker("inspect", "--format", form, known).stdout.strip()
    labels = ["--label", f"{LABEL}={os.getpid()}", "--label", f"{label}={number}"]
    engine.docker("create", *labels, IMAGE, "true")
    assert len(containers(engine)) == 2


@pytest.mark.slow
def test_a_stream_of_events_that_breaks_off_costs_no_outcome_and_leaves_no_container(
    open_pool: Callable[..., Docker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the daemon ends while it tells how a container ended: no error of the client's own."""
    pool = open_pool()

    def broken(**filters: Any) -> Iterator[Any]:
        raise urllib3.exceptions.ProtocolError("Connection broken: IncompleteRead(0 bytes read)")

    monkeypatch.setattr(pool._client.api, "events", broken)
    ((outcome,),) = asyncio.run(pool.run([ENDS_ITSELF]))
    assert (outcome.status, outcome.suspected) == ("signal", True)


async def test_a_pool_that_is_asked_again_while_it_closes_keeps_its_new_containers(
    open_pool: Callable[..., Docker],
) -> None:
    pool = open_pool()
    first = asyncio.ensure_future(pool.run([sleeper(1)]))
    await asyncio.sleep(0.5)
    closing = asyncio.ensure_future(pool.close())
    await asyncio.sleep(0.1)
    ((second,),) = await pool.run([sleeper(3)])
    await closing
    assert [second.value, (await first)[0][0].value] == [0, 0]
    assert pool.started == 1  # beside the one that the pool was opened with


def test_an_image_that_is_gone_is_nobodys_fault(
    engine: Engine, open_pool: Callable[..., Docker]
) -> None:
    pool = open_pool(patience_seconds=1)
    engine.docker("tag", IMAGE, "kept")
    try:
        engine.docker("rmi", "-f", IMAGE)
        ((outcome,),) = asyncio.run(pool.run([ENDS_ITSELF]))
    finally:
        engine.docker("tag", "kept", IMAGE)
        engine.docker("rmi", "kept")
    assert outcome.status == "infra_error"
    assert "No such image" in outcome.error
    assert asyncio.run(pool.run([PROGRAM]))[0][0].value == 2  # the image is back


def test_an_image_with_an_environment_in_it_is_refused(engine: Engine, tmp_path: Path) -> None:
    """Wherever it is: a program can read files that it cannot import."""
    package = tmp_path / "opt" / "venv" / "grpo_env_fizzbuzz"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    made = engine.docker("create", "--network", "none", IMAGE, "true").stdout.strip()
    engine.docker("cp", str(tmp_path / "opt" / "venv"), f"{made}:/opt/venv")
    engine.docker("commit", made, "with-answers")
    engine.docker("rm", made)
    try:
        with pytest.raises(
            ConfigError,
            match=r"could read the answers: its jails show /opt/venv/grpo_env_fizzbuzz; use an image",
        ):
            Docker(DockerConfig(image="with-answers"))
    finally:
        engine.docker("rmi", "-f", "with-answers")
    wait_until_gone(engine)


def leave_behind(engine: Engine, *, owner: int, host: str) -> str:
    labels = ["--label", f"{LABEL}={owner}", "--label", f"{LABEL}.host={host}"]
    return engine.docker(
        "run", "-d", "--network", "none", *labels, IMAGE, "sleep", "1000"
    ).stdout.strip()


@pytest.mark.parametrize("way", ["prune", "start"])
def test_what_dead_trainers_left_is_swept_and_nothing_else(engine: Engine, way: str) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    here = socket.gethostname()
    dead, alive, elsewhere = (
        leave_behind(engine, owner=owner, host=host)
        for owner, host in ((gone.pid, here), (os.getpid(), here), (gone.pid, "another"))
    )
    try:
        if way == "prune":
            done = CliRunner().invoke(app, ["sandbox", "prune"])
            assert done.exit_code == 0, done.output
            assert done.output == f"removing {dead[:12]} of process {gone.pid}\n"
        else:
            asyncio.run(Docker().close())
        assert {name[:12] for name in containers(engine)} == {alive[:12], elsewhere[:12]}
    finally:
        engine.docker("rm", "-f", alive, elsewhere)


@pytest.mark.slow
def test_an_archive_of_a_root_becomes_the_image_and_replaces_the_old_one(
    engine: Engine, tmp_path: Path
) -> None:
    made = engine.docker("create", "--network", "none", IMAGE, "true").stdout.strip()
    engine.docker("export", made, "-o", str(tmp_path / "root.tar"))
    engine.docker("rm", made)
    done = CliRunner().invoke(app, ["sandbox", "build", "--from", str(tmp_path / "root.tar")])
    assert done.exit_code == 0, done.output
    assert "the sandbox docker is ready" in done.output
    assert len(engine.docker("images", "-aq").stdout.split()) == 1


def test_a_root_without_python_is_refused_by_the_canary(engine: Engine, tmp_path: Path) -> None:
    engine.docker("tag", IMAGE, "kept")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "empty").touch()
    subprocess.run(
        ["tar", "-C", str(tmp_path / "root"), "-cf", str(tmp_path / "root.tar"), "."], check=True
    )
    try:
        done = CliRunner().invoke(app, ["sandbox", "build", "--from", str(tmp_path / "root.tar")])
        assert done.exit_code == 2
        assert "cannot run a program" in done.output
        assert "python3" in done.output
    finally:
        engine.docker("tag", "kept", IMAGE)
        engine.docker("rmi", "kept")


def test_a_runtime_that_docker_lacks_is_named_with_those_it_has(engine: Engine) -> None:
    with pytest.raises(ConfigError, match=r"Docker has no runtime 'runsc'; it has .*runc"):
        Docker(DockerConfig(runtime="runsc"))


@pytest.mark.slow
def test_every_container_is_hardened(engine: Engine, open_pool: Callable[..., Docker]) -> None:
    asyncio.run(open_pool(runtime="runc").run([PROGRAM]))
    (found,) = containers(engine)
    host = json.loads(engine.docker("inspect", found).stdout)[0]["HostConfig"]
    expected = {
        "Runtime": "runc",
        "NetworkMode": "none",
        "IpcMode": "none",
        "ReadonlyRootfs": True,
        "Privileged": False,
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges:true"],
        "Memory": 512 << 20,
        "MemorySwap": 512 << 20,
        "PidsLimit": 128,
        "NanoCpus": 10**9,
    }
    assert {name: host[name] for name in expected} == expected
    assert sorted(cap.removeprefix("CAP_") for cap in host["CapAdd"]) == ["SETGID", "SETUID"]
    assert host["LogConfig"]["Type"] == "none"
    assert not host["Binds"]


@pytest.mark.heavy
def test_a_daemon_that_stops_ends_the_run_with_its_reason_and_the_run_goes_on_later(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    from grpo_core.runs.observer import Observer
    from grpo_core.train.rollout.attempt import Attempt
    from grpo_core.train.trainer import Trainer

    settings = {
        "environment": "fizzbuzz",
        "model": {"name": str(save_tiny(tmp_path / "tiny")), "dtype": "float32"},
        "sandbox": {"name": "docker", "settings": {"patience_seconds": 1}},
        "steps": 4,
        "prompts_per_step": 2,
        "group_size": 4,
        "sampling": {"max_new_tokens": 4},
        "eval": {"tasks": 2},
    }

    class StopsTheDaemon(Observer):
        def step(self, step: int, total: int, metrics: Any) -> None:
            if step == 2:
                engine.stop()

    trainer = Trainer(build_config([settings]), folder=tmp_path / "run", observer=StopsTheDaemon())
    rollout = Attempt.rollout
    monkeypatch.setattr(Attempt, "rollout", lambda attempt: _saying(attempt.task, rollout(attempt)))
    try:
        with pytest.raises(
            RunStoppedError, match=r"(?s)could not be judged.*Docker could not make a container"
        ):
            trainer.run()
    finally:
        engine.start()
    steps = [
        line
        for line in read_lines(tmp_path / "run" / "metrics.jsonl")
        if "verify/error_rate" in line and "loss" in line
    ]
    assert [line["verify/error_rate"] for line in steps] == [0.0, 0.0]
    unjudged = [line for line in trainer.folder.rollout_lines() if line["step"] == 3]
    assert len(unjudged) == 8
    assert {line["verdict"]["total"] for line in unjudged} == {None}
    assert all("Docker" in line["verdict"]["error"] for line in unjudged)
    wait_until_gone(engine)

    again = Trainer.resumed(tmp_path / "run")
    assert again.done == 2
    again.run()
    assert again.folder.finished


def _saying(task: Any, rollout: Any) -> Any:
    from dataclasses import replace

    from grpo_core import Message

    return replace(
        rollout,
        messages=(Message("assistant", f"```python\ndef {task.data.entry}(*a): return 1\n```"),),
    )
