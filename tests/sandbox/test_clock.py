"""Timeouts: programs that wait cost one limit, and those that the machine keeps from running are not blamed."""

import asyncio
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from grpo_core import Limits, Outcome, Program
from grpo_sandbox.pool import JailPool

from ..core.processes import wait_until
from .conftest import BACKENDS
from .test_backends import opened

LIMIT = 2.0
SLEEPERS = {
    "a call": "def f(x): time.sleep(100)",
    "an import": "time.sleep(100)\ndef f(x): return x",
    "a lock": "lock = threading.Lock()\nlock.acquire()\ndef f(x):\n    while not lock.acquire(timeout=0.001): pass",
    "select": "def f(x): select.select([os.pipe()[0]], [], [])",
    "a child": "def f(x):\n    pid = os.fork()\n    if pid == 0: time.sleep(100)\n    os.waitpid(pid, 0)",
    "threads": "def f(x):\n    many = [threading.Thread(target=time.sleep, args=(100,)) for _ in range(4)]\n    for each in many: each.start()\n    for each in many: each.join()",
}
IMPORTS = "import os, select, subprocess, sys, threading, time\n"


def timed(pool: JailPool, *programs: Program) -> list[tuple[list[Outcome], float]]:
    """The outcomes of programs that run at once, and for how many seconds each was waited for."""
    jails = pool.config.jails

    async def one(program: Program) -> tuple[list[Outcome], float]:
        started = time.monotonic()
        (row,) = await pool.run([program])
        return list(row), time.monotonic() - started

    async def whole() -> list[tuple[list[Outcome], float]]:
        warm = Program(IMPORTS + "def f(x): time.sleep(0.5)", "f", [(1,)] * jails)
        try:
            await pool.run([warm])  # each thread has its jail now
            return list(await asyncio.gather(*map(one, programs)))
        finally:
            await pool.close()

    return asyncio.run(whole())


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def processes_with(mark: str) -> list[int]:
    pids = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if mark.encode() in path.read_bytes():
                pids.append(int(path.parent.name))
    return pids


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_program_that_waits_costs_one_limit_whatever_it_waits_for(backend: str) -> None:
    limits = Limits(wall_seconds=LIMIT, cpu_seconds=1, memory_mb=512)
    left = dict(SLEEPERS)
    for _ in range(4):  # on a busy machine some of them do wait for a core, and are tried again
        programs = [Program(IMPORTS + source, "f", [(1,)], limits) for source in left.values()]
        results = timed(opened(backend, len(programs)), *programs)
        for name, ((outcome,), seconds) in zip([*left], results, strict=True):
            assert (outcome.status, outcome.suspected) == ("timeout_wall", False), name
            assert outcome.error == "timeout: it took longer than its 2 s"
            assert outcome.wall_seconds >= LIMIT
            if seconds <= 1.5 * LIMIT:
                del left[name]
        if not left:
            return
    pytest.fail(f"{', '.join(left)} took longer than 1.5 limits, four times")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_program_that_waits_is_not_run_on_its_other_inputs(backend: str) -> None:
    program = Program(IMPORTS + SLEEPERS["a call"], "f", [(1,), (2,), (3,)], Limits(wall_seconds=1))
    for _ in range(4):  # on a busy machine it may wait for a core, and is tried again
        (((first, *others), seconds),) = timed(opened(backend, 1), program)
        if seconds <= 1.5:
            break
    assert seconds <= 1.5
    assert (first.status, first.error) == ("timeout_wall", "timeout: it took longer than its 1 s")
    assert {(outcome.status, outcome.wall_seconds) for outcome in others} == {("timeout_wall", 0.0)}
    assert all(outcome.error.startswith("not run: ") for outcome in others)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_program_whose_processes_are_stopped_for_a_while_is_not_blamed(backend: str) -> None:
    mark, pool = uuid.uuid4().hex, opened(backend, 1)
    # Each short sleep ends late once it was stopped, so what is stopped takes longer by that time.
    work = "import time\nfor _ in range(50): time.sleep(0.02)"
    source = f"{IMPORTS}def f(x): return subprocess.run([sys.executable, '-c', {work!r}, '{mark}']).returncode"
    program = Program(source, "f", [(1,)], Limits(wall_seconds=LIMIT, memory_mb=512))

    async def whole() -> Outcome:
        running = asyncio.ensure_future(pool.run([program]))
        await asyncio.to_thread(wait_until, lambda: bool(processes_with(mark)), seconds=20)
        await asyncio.sleep(0.3)
        stopped = processes_with(mark)
        try:
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(LIMIT - 0.5)
        finally:
            for pid in stopped:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        try:
            return (await running)[0][0]
        finally:
            await pool.close()

    outcome = asyncio.run(whole())
    assert (outcome.status, outcome.value) == ("ok", 0), outcome


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_honest_programs_beside_busy_loops_are_not_blamed(backend: str) -> None:
    """Each works for 60 % of its limit, and gets a fifth of a core or less, so that it takes three limits."""
    limit, count = 0.25, 200 if backend == "bubblewrap" else 60
    work = f"def f(x):\n    while time.process_time() < {0.6 * limit}: pass\n    return x"
    limits = Limits(wall_seconds=limit, cpu_seconds=1)
    with busy_loops(8):
        results = timed(opened(backend, 4), *[Program(IMPORTS + work, "f", [(1,)], limits)] * count)
    statuses = Counter(outcome.status for (outcome,), _ in results)
    assert statuses == {"ok": count}, [row for row, _ in results if row[0].status != "ok"][:3]
