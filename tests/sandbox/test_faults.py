"""Right and hostile programs while the infrastructure is broken again and again: who is blamed for what."""

import asyncio
import contextlib
import math
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from grpo_core import Rollout, Services, TaskKey, Verdict
from grpo_core.verify.engine import Verifier
from grpo_env_fizzbuzz.env import FizzBuzz
from grpo_sandbox import bundle
from grpo_sandbox.bubblewrap import Bubblewrap, BubblewrapConfig
from grpo_sandbox.docker import LABEL, Docker, DockerConfig
from grpo_sandbox.pool import JailPool

from .engines import Engine, engine_of_its_own

SLOWLY = "import time\ntime.sleep(0.05)\n"
"""In front of a program, so that faults meet it while it runs."""
HOSTILE = {
    "SIGKILL": "import os\ndef {entry}(*a): os.kill(os.getpid(), 9)",
    "SIGKILL now and then": "import os, random\nrandom.seed()\ndef {entry}(*a):\n    if random.random() < 0.5: os.kill(os.getpid(), 9)",
    "SIGTERM": "import os\ndef {entry}(*a): os.kill(os.getpid(), 15)",
    "everybody": "import os\ndef {entry}(*a): os.kill(-1, 9)",
    "its parent": "import os\ndef {entry}(*a):\n    os.kill(os.getppid(), 9)\n    os.kill(os.getpid(), 9)",
    "leaves": "import os\ndef {entry}(*a): os._exit(0)",
    "memory": "def {entry}(*a): return len(bytearray(10**10))",
    "processes": "import os\ndef {entry}(*a):\n    for _ in range(30): os.fork()\n    while True: pass",
    "raises": "def {entry}(*a): raise AssertionError",
    "constant": "def {entry}(*a): return 'Fizz'",
}
DURATIONS = (0.5, 0.5, 2.0, 2.0, 10.0)
"""Seconds for which something is stopped: shorter and longer than a supervisor is waited for."""
SLEEPS = "import time\ndef {entry}(*a): time.sleep(100)"


def right(task: Any, index: int) -> str:
    return SLOWLY + task.data.source


def hostile(task: Any, index: int) -> str:
    source = SLEEPS if index % 60 == 59 else list(HOSTILE.values())[index % len(HOSTILE)]
    return SLOWLY + source.format(entry=task.data.entry)


async def judged(
    pool: JailPool,
    count: int,
    sources: Callable[[Any, int], str],
    faults: Callable[[], Awaitable[None]],
) -> list[Verdict]:
    """The verdicts of `count` programs while `faults` goes on."""
    env = FizzBuzz(services=Services(sandboxes={"default": pool}))
    tasks = [env.task(TaskKey("fizzbuzz", "train", index)) for index in range(count)]
    texts = [f"```python\n{sources(task, index)}\n```" for index, task in enumerate(tasks)]
    rollouts = [[Rollout.of(text)] for text in texts]
    breaking = asyncio.ensure_future(faults())
    try:
        async with Verifier(env) as verifier:
            return [row[0] for row in await verifier.verify(tasks, rollouts)]
    finally:
        breaking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await breaking
        await pool.close()


class DockerFaults:
    """Every `seconds`, something happens to all containers or to the daemon; what happened is counted."""

    def __init__(self, engine: Engine, *, seed: int, seconds: float) -> None:
        self.engine, self.seconds, self.rng = engine, seconds, random.Random(seed)
        self.count: Counter[str] = Counter()

    async def go_on(self) -> None:
        kinds = (self._crash, self._freeze, self._kill, self._pause, self._restart)
        while True:
            await asyncio.sleep(self.seconds)
            fault = self.rng.choice(kinds)
            self.count[fault.__name__] += 1
            work = asyncio.to_thread(fault, self.rng.choice(DURATIONS))
            await asyncio.shield(asyncio.ensure_future(work))

    def _containers(self) -> list[str]:
        return self.engine.docker(
            "ps", "-q", "--filter", f"label={LABEL}", check=False
        ).stdout.split()

    def _kill(self, seconds: float) -> None:
        self.engine.docker("kill", *(self._containers() or ["none"]), check=False)

    def _pause(self, seconds: float) -> None:
        names = self._containers() or ["none"]
        self.engine.docker("pause", *names, check=False)
        time.sleep(seconds)
        self.engine.docker("unpause", *names, check=False)

    def _freeze(self, seconds: float) -> None:
        self.engine.signal(signal.SIGSTOP)
        time.sleep(seconds)
        self.engine.signal(signal.SIGCONT)

    def _restart(self, seconds: float) -> None:
        self.engine.stop()
        self.engine.start()

    def _crash(self, seconds: float) -> None:
        self.engine.stop(signal.SIGKILL)
        time.sleep(3)
        self.engine.start()


class ProcessFaults:
    """The same for jails that are processes: they are killed, or stopped for a while."""

    def __init__(self, mark: str, *, seed: int, seconds: float) -> None:
        self.mark, self.seconds, self.rng = mark.encode(), seconds, random.Random(seed)
        self.count: Counter[str] = Counter()

    async def go_on(self) -> None:
        while True:
            await asyncio.sleep(self.seconds)
            kind = self.rng.choice(["kill", "stop"])
            self.count[kind] += 1
            victims = self._jails()
            for pid in victims:
                self._signal(pid, signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
            if kind == "stop":
                try:
                    await asyncio.sleep(self.rng.choice(DURATIONS))
                finally:
                    for pid in victims:
                        self._signal(pid, signal.SIGCONT)

    def _jails(self) -> list[int]:
        pids = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if self.mark in (folder / "cmdline").read_bytes():
                    pids.append(int(folder.name))
        return pids

    def _signal(self, pid: int, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def errors(verdicts: Sequence[Verdict]) -> int:
    return sum(not verdict.scored for verdict in verdicts)


def upper_bound(hostile_errors: int, right_errors: int, count: int) -> float:
    """The upper 95 % bound of the difference of two rates over `count` programs each (Newcombe 1998, method 10)."""
    (p, _, upper), (q, lower, _) = wilson(hostile_errors, count), wilson(right_errors, count)
    return p - q + math.sqrt((upper - p) ** 2 + (q - lower) ** 2)


def wilson(successes: int, count: int, z: float = 1.96) -> tuple[float, float, float]:
    share = successes / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    margin = (
        z
        / (1 + z * z / count)
        * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    )
    return share, middle - margin, middle + margin


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    with engine_of_its_own(with_image=True) as engine:
        monkeypatch.setenv("DOCKER_HOST", engine.host)
        yield engine


def under_faults(
    backend: str, engine: Engine | None, count: int, seconds: float, seed: int
) -> dict[str, Any]:
    """What became of `count` right and `count` hostile programs, each under faults of their own of the same kinds."""
    report: dict[str, Any] = {
        "sandbox": backend,
        "programs": count,
        "a fault every": f"{seconds:g} s",
    }
    for name, sources in (("right", right), ("hostile", hostile)):
        started = time.monotonic()
        if engine is not None:
            pool: JailPool = Docker(DockerConfig(jails=4))
            faults: Any = DockerFaults(engine, seed=seed, seconds=seconds)
        else:
            pool = Bubblewrap(BubblewrapConfig(jails=4))
            faults = ProcessFaults(bundle._LOADER.splitlines()[-1], seed=seed, seconds=seconds)
        verdicts = asyncio.run(judged(pool, count, sources, faults.go_on))
        rewards = Counter(round(verdict.total, 3) for verdict in verdicts if verdict.scored)
        reasons = Counter((verdict.error or "")[:100] for verdict in verdicts if not verdict.scored)
        report[name] = {
            "rewards": dict(rewards),
            "errors": errors(verdicts),
            "reasons": dict(reasons),
            "faults": dict(faults.count),
            "seconds": round(time.monotonic() - started),
        }
        print(name, report[name], flush=True)
    report["upper bound of the difference of error rates"] = upper_bound(
        report["hostile"]["errors"], report["right"]["errors"], count
    )
    print({name: part for name, part in report.items() if name not in ("right", "hostile")})
    return report


def check(report: dict[str, Any], *, bar: float) -> None:
    """The bar of the difference means something only if nearly everything was judged."""
    assert sum(report["right"]["faults"].values()) >= 2
    for name in ("right", "hostile"):
        assert report[name]["errors"] <= report["programs"] / 20, report
    assert set(report["right"]["rewards"]) <= {1.0}, report  # nothing between: right or not judged
    assert 1.0 not in report["hostile"]["rewards"], report
    assert report["upper bound of the difference of error rates"] <= bar, report


@pytest.fixture
def marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        bundle, "_LOADER", f"{bundle._LOADER}\n# of the tests of faults in {os.getpid()}"
    )


@pytest.mark.heavy
def test_three_hundred_programs_of_each_kind_while_jails_are_killed_and_stopped(
    marked: None,
) -> None:
    check(under_faults("bubblewrap", None, 300, 5.0, seed=2), bar=0.03)


@pytest.mark.heavy
def test_three_hundred_programs_of_each_kind_while_containers_and_their_daemon_break(
    engine: Engine,
) -> None:
    check(under_faults("docker", engine, 300, 5.0, seed=2), bar=0.03)
