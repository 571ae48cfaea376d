"""Both back ends against real jails: what programs get, what attacks do not get, and what is left behind."""

from __future__ import annotations

import asyncio
import functools
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpo_core import ConfigError, Limits, Outcome, Program
from grpo_sandbox import supervisor
from grpo_sandbox.bubblewrap import Bubblewrap, BubblewrapConfig
from grpo_sandbox.docker import Docker, DockerConfig
from grpo_sandbox.pool import JailPool

from .attacks import ATTACKS
from .engines import missing

pytestmark = pytest.mark.xdist_group("jails")  # with the others that count or kill supervisors

SHORT = Limits(wall_seconds=2, cpu_seconds=1, memory_mb=128)
PROBE = Program(
    "import os\ndef f(x): return x + 1, sorted(os.listdir('.')), os.path.isdir('/dev/shm') and sorted(os.listdir('/dev/shm')) or []",
    "f",
    [(1,)],
)
UNDISTURBED = (2, [], [])
OURS = f"of the tests in {uuid.uuid4()}"


@pytest.fixture(scope="module", autouse=True)
def marked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Supervisors say whose they are: other runs on this machine have jails, too."""
    source = tmp_path_factory.mktemp("supervisor") / "supervisor.py"
    source.write_text(f"{Path(supervisor.__file__).read_text()}\n# {OURS}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(supervisor, "__file__", str(source))
        yield source


def open_pool(name: str, jails: int) -> JailPool:
    if name == "bubblewrap":
        return Bubblewrap(BubblewrapConfig(jails=jails))
    pytest.importorskip("docker")
    return Docker(DockerConfig(jails=jails))


def opened(name: str, jails: int) -> JailPool:
    """Where it cannot run, the test is skipped, or fails if GRPO_NEED_SANDBOX says that it must be there."""
    try:
        return open_pool(name, jails)
    except ConfigError as error:
        missing(str(error))
        raise


@pytest.fixture(scope="module", params=["bubblewrap", "docker"])
def backend(request: pytest.FixtureRequest) -> str:
    """The name of one that is there."""
    asyncio.run(opened(str(request.param), 1).close())
    return str(request.param)


@pytest.fixture
def pool(backend: str) -> Iterator[JailPool]:
    pool = open_pool(backend, 2)
    yield pool
    asyncio.run(pool.close())


@pytest.fixture(scope="module")
def one_jail(backend: str) -> Iterator[JailPool]:
    """The same jail for one attack after the other."""
    pool = open_pool(backend, 1)
    yield pool
    asyncio.run(pool.close())


def run(pool: JailPool, *programs: Program) -> list[Sequence[Outcome]]:
    return list(asyncio.run(pool.run(programs)))


def one(pool: JailPool, source: str, *arguments: Any, limits: Limits = SHORT) -> Outcome:
    return run(pool, Program(source, "f", [arguments], limits))[0][0]


def supervisors() -> set[int]:
    """Every running one of these tests, by its command line."""
    found = set()
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and OURS.encode() in (folder / "cmdline").read_bytes():
                found.add(int(folder.name))
        except OSError:
            continue
    return found


def supervisors_beside(known: set[int]) -> set[int]:
    """Those that have been started since, as soon as there is one."""
    deadline = time.monotonic() + 30
    while not (found := supervisors() - known) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


VALUES = [
    None, True, 0, -1, 2**53, -(2**200), 0.1, float("inf"), "", "ä\x00\ud800", b"\x00\xff", [], [1, [2, [3]]], (), (1, (2,)), {1, 2},
    frozenset({(1, 2)}), {}, {"a": 1, (1, 2): [None]}, {"ok": {"i": "1"}},
]  # fmt: skip


def test_values_come_back_as_they_went_in_with_their_types(pool: JailPool) -> None:
    (found,) = run(pool, Program("def f(x): return x", "f", [(value,) for value in VALUES]))
    assert [outcome.status for outcome in found] == ["ok"] * len(VALUES)
    for value, outcome in zip(VALUES, found, strict=True):
        assert (type(outcome.value), outcome.value) == (type(value), value)


def test_outcomes_of_a_batch_keep_their_order_and_their_programs(pool: JailPool) -> None:
    programs = [Program(f"def f(x): return x * {n}", "f", [(i,) for i in range(20)]) for n in range(5)]
    assert [[outcome.value for outcome in row] for row in run(pool, *programs)] == [[i * n for i in range(20)] for n in range(5)]


STATUSES = {
    "def f(x): return x": "ok",
    "def f(x): raise ValueError('no')": "exception",
    "def f(x):\n    while True: pass": "timeout_cpu",
    "import time\ndef f(x): time.sleep(100)": "timeout_wall",
    "def f(x): return len(bytearray(10**10))": "oom",
    "def f(x): print('x' * 10**6)": "output_limit",
    "import os\ndef f(x): os.kill(os.getpid(), 11)": "signal",
    "import os\ndef f(x): os._exit(0)": "no_result",
    "def f(x): return object()": "bad_result",
}


@pytest.mark.parametrize(("source", "status"), STATUSES.items(), ids=STATUSES.values())
def test_every_way_to_end_has_its_status(one_jail: JailPool, source: str, status: str) -> None:
    limits = replace(SHORT, wall_seconds=30) if status == "timeout_cpu" else SHORT  # other tests want the processor, too
    outcome = one(one_jail, source, 1, limits=limits)
    assert outcome.status == status, outcome
    assert bool(outcome.error) == (status not in ("ok", "oom"))
    assert outcome.wall_seconds < limits.wall_seconds + 2


def test_processor_time_is_limited_to_parts_of_a_second(one_jail: JailPool) -> None:
    source = "import time\ndef f(x):\n    while time.process_time() < x: pass\n    return x"
    patient = replace(SHORT, wall_seconds=30)
    assert one(one_jail, source, 0.5, limits=patient).value == 0.5
    late = one(one_jail, source, 0.5, limits=replace(patient, cpu_seconds=0.2))
    assert (late.status, late.value, late.error) == ("timeout_cpu", None, "it used more than 0.2 s of CPU time")


def test_what_a_program_prints_is_kept_apart_from_what_it_claims(one_jail: JailPool) -> None:
    outcome = one(one_jail, "import sys\ndef f(x):\n    print('out'); print('err', file=sys.stderr)\n    return x", 3)
    assert (outcome.value, outcome.stdout, outcome.stderr) == (3, "out\n", "err\n")


@functools.cache
def attacked(backend: str) -> dict[str, tuple[Outcome, Outcome]]:
    """The outcome of each attack, and of the probe that ran next in the same jail. Eight jails, each for one attack after the other; time
    for a loaded machine, so that what ends by CPU time does not end by the clock."""
    limits = Limits(wall_seconds=10, cpu_seconds=1, memory_mb=128)
    pools = [opened(backend, 1) for _ in range(8)]

    async def one_after_the_other(pool: JailPool, names: Sequence[str]) -> list[tuple[Outcome, Outcome]]:
        rows = [await pool.run([Program(ATTACKS[name], "f", [(1,)], limits), PROBE]) for name in names]
        return [(attack[0], after[0]) for attack, after in rows]

    async def all_of_them() -> dict[str, tuple[Outcome, Outcome]]:
        shares = [list(ATTACKS)[i :: len(pools)] for i in range(len(pools))]
        found = await asyncio.gather(*map(one_after_the_other, pools, shares))
        await asyncio.gather(*(pool.close() for pool in pools))
        return {name: pair for share, pairs in zip(shares, found, strict=True) for name, pair in zip(share, pairs, strict=True)}

    return asyncio.run(all_of_them())


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_gets_nothing_and_leaves_nothing(backend: str, name: str) -> None:
    """Its neighbour, the next call in the same place, finds an empty folder, and is right."""
    outcome, after = attacked(backend)[name]
    assert not (outcome.status == "ok" and type(outcome.value) is int and outcome.value == 2)
    assert outcome.status != "infra_error", outcome.error
    assert after.status == "ok", after
    assert after.value == UNDISTURBED


DIFFERENT = {
    "kill the parent": "without a second uid, the signal is sent and not delivered; with one, sending it is refused",
    "fork bomb": "its processes share the processor, so which limit ends it depends on the machine",
    "inodes": "only Docker can limit how many files there are; bubblewrap's program runs into its limit of CPU time",
    "memory of many": "only Docker limits the memory of all processes of a program together",
}
"""Attacks that fail under both back ends, each in its own way."""


def test_the_same_programs_have_the_same_outcomes_under_both_back_ends() -> None:
    """Which of the two limits of time ends a program depends on how busy the machine is; that it is one of them does not."""
    versions = {}
    for name in ("bubblewrap", "docker"):
        pool = opened(name, 1)
        versions[name] = one(pool, "import sys\ndef f(x): return sys.version_info[:2]", 1).value
        asyncio.run(pool.close())
    if versions["bubblewrap"] != versions["docker"]:
        missing(f"different versions of Python: {versions}")
    ours, theirs = (
        {
            name: (outcome.status.removesuffix("_cpu").removesuffix("_wall"), repr(outcome.value))
            for name, (outcome, _) in attacked(backend).items()
        }
        for backend in versions
    )
    assert {name for name in ATTACKS if ours[name] != theirs[name]} <= DIFFERENT.keys()


def test_nothing_but_the_work_folder_can_be_written(one_jail: JailPool) -> None:
    source = """
import os
def f(x):
    found = []
    for folder, folders, _ in os.walk("/"):
        folders[:] = [name for name in folders if os.path.join(folder, name) not in ("/proc", "/sys", "/work")]
        try:
            open(os.path.join(folder, "grpo-probe"), "w").close()
            found.append(folder)
        except OSError:
            pass
    return found
"""
    assert one(one_jail, source, 1, limits=Limits(wall_seconds=30, cpu_seconds=20)).value == []


def test_a_hanging_program_costs_its_own_deadline_and_no_one_elses(pool: JailPool) -> None:
    run(pool, PROBE, PROBE)  # both jails are there
    started = time.monotonic()
    rows = run(pool, Program("import time\ndef f(x): time.sleep(100)", "f", [(1,)], SHORT), *[PROBE] * 50)
    assert [row[0].value for row in rows[1:]] == [UNDISTURBED] * 50
    assert rows[0][0].status == "timeout_wall", rows[0][0]
    assert time.monotonic() - started < SHORT.wall_seconds + 10


def test_a_program_that_keeps_hanging_is_given_up_whatever_the_number_of_jails(backend: str) -> None:
    source = "import time\ndef f(x):\n    if x in (1, 3): time.sleep(100)\n    return x"
    for jails in (1, 3):
        pool = open_pool(backend, jails)
        started = time.monotonic()
        (row,) = run(pool, Program(source, "f", [(i,) for i in range(20)], SHORT))
        asyncio.run(pool.close())
        assert [outcome.status for outcome in row] == ["ok", "timeout_wall", "ok", *["timeout_wall"] * 17]
        assert row[3].error.startswith("it took longer than")
        assert row[4].error.startswith("not run: it had run out of time on 2 inputs")
        assert time.monotonic() - started < 2 * SHORT.wall_seconds + 15


def test_a_lost_supervisor_costs_no_program_its_verdict(pool: JailPool) -> None:
    """One kill -9 in the middle of a batch."""
    before = supervisors()
    run(pool, PROBE, PROBE)

    async def disturbed() -> Sequence[Sequence[Outcome]]:
        program = Program("import time\ndef f(x):\n    time.sleep(0.2)\n    return x", "f", [(i,) for i in range(20)], SHORT)
        batch = asyncio.ensure_future(pool.run([program]))
        await asyncio.sleep(0.7)
        os.kill(min(supervisors() - before), signal.SIGKILL)
        return await batch

    (row,) = asyncio.run(disturbed())
    assert [outcome.value for outcome in row] == list(range(20))


def test_a_program_that_the_machine_ends_is_run_once_more(backend: str) -> None:
    """As a machine short of memory does, outside the container's own count: its choice falls on programs first."""
    before, pool = supervisors(), open_pool(backend, 1)
    run(pool, PROBE)
    ours = supervisors() - before

    async def disturbed() -> Sequence[Sequence[Outcome]]:
        program = Program("import time\ndef f(x):\n    time.sleep(2)\n    return x", "f", [(1,), (2,)], replace(SHORT, wall_seconds=30))
        batch = asyncio.ensure_future(pool.run([program]))
        started = await asyncio.to_thread(supervisors_beside, before | ours)
        await asyncio.sleep(0.2)
        os.kill(max(started), signal.SIGKILL)
        return await batch

    (row,) = asyncio.run(disturbed())
    asyncio.run(pool.close())
    assert [outcome.value for outcome in row] == [1, 2], row


def test_a_machine_without_a_free_file_descriptor_is_no_programs_fault_and_the_pool_goes_on() -> None:
    pool = opened("bubblewrap", 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def short() -> Sequence[Sequence[Outcome]]:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            return await asyncio.wait_for(pool.run([PROBE]), 20)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    ((found,),) = asyncio.run(short())
    assert (found.status, "could not be started" in found.error) == ("infra_error", True), found
    assert run(pool, PROBE)[0][0].value == UNDISTURBED
    asyncio.run(pool.close())


def test_a_program_that_ends_itself_is_not_the_machines_doing(one_jail: JailPool) -> None:
    (row,) = run(one_jail, Program("import os\ndef f(x): os.kill(os.getpid(), 9)", "f", [(i,) for i in range(3)], SHORT))
    assert {(outcome.status, outcome.error) for outcome in row} == {("signal", "it was ended by signal 9")}


def test_a_closed_pool_leaves_no_process_and_starts_again_when_asked(backend: str) -> None:
    before = supervisors()
    pool = open_pool(backend, 2)
    for _ in range(2):
        assert run(pool, PROBE)[0][0].value == UNDISTURBED
        assert supervisors() - before
        asyncio.run(pool.close())
        deadline = time.monotonic() + 10
        while supervisors() - before and time.monotonic() < deadline:
            time.sleep(0.1)
        assert supervisors() - before == set()


def test_a_fingerprint_is_of_the_settings_that_decide_an_outcome_and_not_of_the_number_of_jails(backend: str) -> None:
    pools = [open_pool(backend, 1), open_pool(backend, 2)]
    pools += [type(pools[0])(replace(pools[0].config, folder_mb=folder_mb)) for folder_mb in (16, 8)]
    first, second, same, smaller = [pool.fingerprint() for pool in pools]
    assert first == second == same != smaller
    for pool in pools:
        asyncio.run(pool.close())


def test_an_input_that_cannot_be_sent_is_the_callers_mistake(pool: JailPool) -> None:
    with pytest.raises(TypeError, match="a object is no plain value"):
        run(pool, Program("def f(x): return x", "f", [(object(),)]))


def test_without_bubblewrap_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="apt install bubblewrap"):
        Bubblewrap()


def test_without_a_daemon_one_line_says_what_to_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("docker")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path / 'nobody.sock'}")
    with pytest.raises(ConfigError, match="start its daemon"):
        Docker()


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_kill_9_of_the_process_that_asked_leaves_nothing(marked: Path) -> None:
    before = supervisors()
    code = (
        "import asyncio, os, signal\n"
        "from grpo_core import Program\n"
        "from grpo_sandbox import supervisor\n"
        "from grpo_sandbox.bubblewrap import Bubblewrap\n"
        f"supervisor.__file__ = {str(marked)!r}\n"
        "pool = Bubblewrap()\n"
        "asyncio.run(pool.run([Program('def f(x): return x', 'f', [(i,) for i in range(8)])]))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    deadline = time.monotonic() + 10
    while supervisors() - before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert supervisors() - before == set()
