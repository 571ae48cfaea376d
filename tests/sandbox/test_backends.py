"""Both back ends against real jails: what programs get, what attacks do not get, and what is left behind."""

from __future__ import annotations

import asyncio
import contextlib
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
from grpo_core.calls.deadline import within
from grpo_core.kit.hostile import MARKS, VICTIM
from grpo_sandbox import bundle
from grpo_sandbox.bubblewrap import Bubblewrap, BubblewrapConfig
from grpo_sandbox.docker import Docker, DockerConfig
from grpo_sandbox.pool import JailPool

from .attacks import ATTACKS
from .engines import missing
from .siblings import LEAVERS, THIEVES

SHORT = Limits(wall_seconds=2, cpu_seconds=1, memory_mb=128)
PROBE = Program(
    """
import os, time
def f(x):
    shared = sorted(os.listdir('/dev/shm')) if os.path.isdir('/dev/shm') else []
    folder = os.stat('.')
    fresh = abs(time.time() - folder.st_mtime) < 100 and abs(time.time() - folder.st_atime) < 100
    return x + 1, sorted(os.listdir('.')), shared, os.listxattr('.'), folder.st_mode & 0o7777, folder.st_nlink, fresh
""",
    "f",
    [(1,)],
)
UNDISTURBED = (2, [], [], [], 0o777, 2, True)
OURS = f"of the tests in {uuid.uuid4()}"


@pytest.fixture(scope="module", autouse=True)
def marked() -> Iterator[str]:
    """Supervisors say whose they are: other runs on this machine have jails, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bundle, "_LOADER", f"{bundle._LOADER}\n# {OURS}\n")
        yield bundle._LOADER


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


def kill_one_beside(known: set[int]) -> None:
    """Kill -9 one of those that have been started since; some are short-lived, and gone when their turn comes."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for pid in sorted(supervisors_beside(known)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                return
    pytest.fail("there is no supervisor to kill")


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
    programs = [
        Program(f"def f(x): return x * {n}", "f", [(i,) for i in range(20)]) for n in range(5)
    ]
    assert [[outcome.value for outcome in row] for row in run(pool, *programs)] == [
        [i * n for i in range(20)] for n in range(5)
    ]


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


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("source", "status"), STATUSES.items(), ids=STATUSES.values())
def test_every_way_to_end_has_its_status(one_jail: JailPool, source: str, status: str) -> None:
    limits = (
        replace(SHORT, wall_seconds=30) if status == "timeout_cpu" else SHORT
    )  # other tests want the processor, too
    outcome = one(one_jail, source, 1, limits=limits)
    assert outcome.status == status, outcome
    assert bool(outcome.error) == (status not in ("ok", "oom"))
    assert outcome.wall_seconds < limits.wall_seconds + 2


def test_processor_time_is_limited_to_parts_of_a_second(one_jail: JailPool) -> None:
    source = "import time\ndef f(x):\n    while time.process_time() < x: pass\n    return x"
    patient = replace(SHORT, wall_seconds=30)
    assert one(one_jail, source, 0.5, limits=patient).value == 0.5
    late = one(one_jail, source, 0.5, limits=replace(patient, cpu_seconds=0.2))
    assert (late.status, late.value, late.error) == (
        "timeout_cpu",
        None,
        "it used more than 0.2 s of CPU time",
    )


def test_what_a_program_prints_is_kept_apart_from_what_it_claims(one_jail: JailPool) -> None:
    outcome = one(
        one_jail,
        "import sys\ndef f(x):\n    print('out'); print('err', file=sys.stderr)\n    return x",
        3,
    )
    assert (outcome.value, outcome.stdout, outcome.stderr) == (3, "out\n", "err\n")


@functools.cache
def attacked(backend: str) -> dict[str, tuple[Outcome, Outcome]]:
    """The outcome of each attack, and of the probe that ran next in the same jail. Twelve jails, each for one attack after the other; time
    for a loaded machine, so that what ends by CPU time does not end by the clock."""
    limits = Limits(wall_seconds=2, cpu_seconds=1, memory_mb=128)
    pools = [opened(backend, 1) for _ in range(12)]

    async def one_after_the_other(
        pool: JailPool, names: Sequence[str]
    ) -> list[tuple[Outcome, Outcome]]:
        rows = [
            await pool.run([Program(ATTACKS[name], "f", [(1,)], limits), PROBE]) for name in names
        ]
        return [(attack[0], after[0]) for attack, after in rows]

    async def all_of_them() -> dict[str, tuple[Outcome, Outcome]]:
        shares = [list(ATTACKS)[i :: len(pools)] for i in range(len(pools))]
        found = await asyncio.gather(*map(one_after_the_other, pools, shares))
        await asyncio.gather(*(pool.close() for pool in pools))
        return {
            name: pair
            for share, pairs in zip(shares, found, strict=True)
            for name, pair in zip(share, pairs, strict=True)
        }

    return asyncio.run(all_of_them())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_gets_nothing_and_leaves_nothing(backend: str, name: str) -> None:
    """Its neighbour, the next call in the same place, finds an empty folder, and is right."""
    outcome, after = attacked(backend)[name]
    assert not (outcome.status == "ok" and type(outcome.value) is int and outcome.value == 2)
    assert outcome.status != "infra_error", outcome.error
    assert after.status == "ok", after
    assert after.value == UNDISTURBED


@pytest.mark.parametrize("name", THIEVES)
def test_a_program_finds_nothing_of_an_earlier_call_in_its_jail(
    one_jail: JailPool, name: str
) -> None:
    victim = Program(VICTIM, "f", [(MARKS["input"],)], SHORT)
    thief = Program(THIEVES[name], "f", [(1,)], Limits(wall_seconds=20, cpu_seconds=10))
    rows = run(one_jail, *[victim] * 5, thief)
    assert {row[0].value for row in rows[:5]} == {MARKS["input"] + MARKS["returned"]}
    assert rows[5][0].status == "ok", rows[5][0]
    assert rows[5][0].value == []


def test_a_thief_does_find_what_is_in_its_own_memory(one_jail: JailPool) -> None:
    """The search is one that can find something."""
    source = f"{THIEVES['memory']}\nheld = 'kf' + '7' * 16 + 'zz'\n"
    assert one(one_jail, source, 1, limits=Limits(wall_seconds=20, cpu_seconds=10)).value == [
        "kf7777777777777777zz"
    ]


def test_a_container_whose_memory_ran_out_behind_a_programs_back_is_not_used_again() -> None:
    """Docker would say of it for ever that it was out of memory, also when it is lost for another reason."""
    asyncio.run(opened("docker", 1).close())
    pool = Docker(DockerConfig(jails=1, memory_mb=100))
    source = """
import os
def f(x):
    ends = []
    for _ in range(3):
        pid = os.fork()
        if pid == 0:
            kept = bytearray(150 << 20)
            os._exit(0)
        ends.append(os.waitpid(pid, 0)[1])
    return ends
"""
    (row,) = run(
        pool, Program(source, "f", [(1,), (2,)], replace(SHORT, memory_mb=250, wall_seconds=20))
    )
    asyncio.run(pool.close())
    assert [(outcome.status, outcome.value) for outcome in row] == [("ok", [9, 9, 9])] * 2
    assert pool.started == 1  # beside the one that the pool was opened with


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_a_program_that_starts_no_process_needs_room_for_one(
    one_jail: JailPool, processes: int
) -> None:
    assert (
        one(one_jail, "def f(x): return x", 1, limits=replace(SHORT, processes=processes)).value
        == 1
    )


def test_as_many_processes_are_allowed_under_either_back_end(one_jail: JailPool) -> None:
    source = """
import os, time
def f(x):
    for made in range(100):
        try:
            if os.fork() == 0: time.sleep(10)
        except OSError: return made
"""
    assert one(one_jail, source, 1, limits=replace(SHORT, processes=6)).value == 5


@pytest.mark.parametrize("trace", LEAVERS)
def test_a_program_leaves_no_trace_for_the_next_call(one_jail: JailPool, trace: str) -> None:
    leave, look, without = LEAVERS[trace]
    left = Program(
        f"import os\ndef f(x):\n    try: pass\n    finally: pass\n    {leave}", "f", [(1,)], SHORT
    )
    looked = Program(f"import os\ndef f(x): return {look}", "f", [(1,)], SHORT)
    _, ((outcome),) = run(one_jail, left, looked)
    assert outcome.status == "ok", outcome
    assert outcome.value == without


DIFFERENT = {
    "kill the parent": "without a second uid, the signal is sent and not delivered; with one, sending it is refused",
    "fork bomb": "its processes share the processor, so which limit ends it depends on the machine",
    "memory of many": "only Docker limits the memory of all processes of a program together",
    "stop the supervisor": "as for killing it",
    "killed at random": "it chooses anew each time, and one of the signals is an exception in Python",
    "score of memory": "without /proc there is no file to write to",
    "zombies": "processes are counted per user: what Docker's supervisor and helpers are does not count",
    "processes that stop each other": "they share the processor",
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


@pytest.mark.sampled(1)
def test_a_hanging_program_costs_its_own_deadline_and_no_one_elses(pool: JailPool) -> None:
    async def hang_beside_neighbours() -> tuple[
        bool, Sequence[Sequence[Outcome]], Sequence[Outcome]
    ]:
        hanging = asyncio.ensure_future(
            pool.run([Program("import time\ndef f(x): time.sleep(100)", "f", [(1,)], SHORT)])
        )
        await asyncio.sleep(0.1)  # it is the first in the queue
        neighbours = await pool.run([PROBE] * 50)
        return hanging.done(), neighbours, (await hanging)[0]

    run(pool, PROBE, PROBE)  # both jails are there
    hanging_was_done, neighbours, hung = asyncio.run(hang_beside_neighbours())
    assert [row[0].value for row in neighbours] == [UNDISTURBED] * 50
    assert hung[0].status == "timeout_wall", hung[0]
    assert not hanging_was_done  # the neighbours did not wait for it


@pytest.mark.slow
def test_a_program_that_waits_is_given_up_after_five_tries_whatever_the_number_of_jails(
    backend: str,
) -> None:
    source = "import time\ndef f(x):\n    if x in (1, 3): time.sleep(100)\n    return x"
    limits = replace(SHORT, wall_seconds=1)
    for jails in (1, 3):
        pool = open_pool(backend, jails)
        started = time.monotonic()
        (row,) = run(pool, Program(source, "f", [(i,) for i in range(20)], limits))
        asyncio.run(pool.close())
        assert [outcome.status for outcome in row] == ["ok", *["timeout_wall"] * 19]
        assert row[1].error.startswith(
            "it failed 5 times where a known-good program ran; the last time: it took longer than 1 s"
        )
        assert row[2].error.startswith("not run: the program had ended badly on an earlier input")
        assert [outcome.suspected for outcome in row] == [False, *[True] * 19]
        assert time.monotonic() - started < 30


@pytest.mark.slow
def test_programs_that_sleep_just_under_their_limit_cost_their_budget_and_nobody_a_verdict(
    backend: str,
) -> None:
    """Each of them would take 24 times 0.4 s; all together take much longer than the deadline of a verdict."""
    pool = open_pool(backend, 4)
    sleeper = Program(
        "import time\ndef f(x):\n    time.sleep(0.4)\n    return x",
        "f",
        [(i,) for i in range(24)],
        replace(SHORT, wall_seconds=0.5),
    )

    async def verdict(program: Program) -> Sequence[Outcome]:
        (row,) = await within(pool.run([program]), 2.0)
        return row

    async def all_of_them() -> list[Sequence[Outcome]]:
        try:
            return await asyncio.gather(
                *(verdict(program) for program in [*[sleeper] * 6, *[PROBE] * 4])
            )
        finally:
            await pool.close()

    rows = asyncio.run(all_of_them())
    for row in rows[:6]:
        assert {outcome.status for outcome in row[-10:]} == {"timeout_wall"}
        assert 0.5 < sum(outcome.wall_seconds for outcome in row) < 4
    assert [row[0].value for row in rows[6:]] == [UNDISTURBED] * 4


@pytest.mark.slow
def test_a_program_that_uses_up_its_processor_time_twice_is_given_up_without_any_suspicion(
    backend: str,
) -> None:
    source = "def f(x):\n    while x in (1, 3): pass\n    return x"
    for jails in (1, 3):
        pool = open_pool(backend, jails)
        (row,) = run(
            pool, Program(source, "f", [(i,) for i in range(20)], replace(SHORT, wall_seconds=30))
        )
        asyncio.run(pool.close())
        assert [outcome.status for outcome in row] == [
            "ok",
            "timeout_cpu",
            "ok",
            "timeout_cpu",
            *["timeout_wall"] * 16,
        ]
        assert row[4].error.startswith("not run: it had run out of time on 2 inputs")
        assert not any(outcome.suspected for outcome in row)


def test_a_lost_supervisor_costs_no_program_its_verdict(pool: JailPool) -> None:
    """One kill -9 in the middle of a batch."""
    before = supervisors()
    run(pool, PROBE, PROBE)

    async def disturbed() -> Sequence[Sequence[Outcome]]:
        program = Program(
            "import time\ndef f(x):\n    time.sleep(0.2)\n    return x",
            "f",
            [(i,) for i in range(20)],
            SHORT,
        )
        batch = asyncio.ensure_future(pool.run([program]))
        await asyncio.sleep(0.7)
        kill_one_beside(before)
        return await batch

    (row,) = asyncio.run(disturbed())
    assert [outcome.value for outcome in row] == list(range(20))


@pytest.mark.slow
def test_a_lost_supervisor_does_not_excuse_a_program_that_ends_itself(backend: str) -> None:
    before, pool = supervisors(), open_pool(backend, 1)
    run(pool, PROBE)
    source = "import os, time\ndef f(x):\n    time.sleep(1)\n    os.kill(os.getpid(), 9)"

    async def disturbed() -> Sequence[Sequence[Outcome]]:
        batch = asyncio.ensure_future(pool.run([Program(source, "f", [(1,)], SHORT)]))
        await asyncio.sleep(0.4)
        kill_one_beside(before)
        return await batch

    ((outcome,),) = asyncio.run(disturbed())
    asyncio.run(pool.close())
    assert outcome.status == "signal", outcome


def test_a_program_that_the_machine_ends_is_run_once_more(backend: str) -> None:
    """As a machine short of memory does, outside the container's own count: its choice falls on programs first."""
    before, pool = supervisors(), open_pool(backend, 1)
    run(pool, PROBE)
    ours = supervisors() - before

    async def disturbed() -> Sequence[Sequence[Outcome]]:
        program = Program(
            "import time\ndef f(x):\n    time.sleep(2)\n    return x",
            "f",
            [(1,), (2,)],
            replace(SHORT, wall_seconds=30),
        )
        batch = asyncio.ensure_future(pool.run([program]))
        started = await asyncio.to_thread(supervisors_beside, before | ours)
        await asyncio.sleep(0.2)
        os.kill(max(started), signal.SIGKILL)
        return await batch

    (row,) = asyncio.run(disturbed())
    asyncio.run(pool.close())
    assert [outcome.value for outcome in row] == [1, 2], row


def test_a_machine_without_a_free_file_descriptor_is_no_programs_fault_and_the_pool_goes_on() -> (
    None
):
    asyncio.run(opened("bubblewrap", 1).close())
    pool = Bubblewrap(BubblewrapConfig(jails=1, patience_seconds=0.5))
    assert run(pool, PROBE)[0][0].value == UNDISTURBED
    for slot in pool._slots:
        slot.end_jail()  # the next call needs a new one
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
    (row,) = run(
        one_jail,
        Program(
            "import os\ndef f(x): os.kill(os.getpid(), 9)", "f", [(i,) for i in range(3)], SHORT
        ),
    )
    assert {(outcome.status, outcome.suspected) for outcome in row} == {("signal", True)}
    assert (
        row[0].error
        == "it failed 5 times where a known-good program ran; the last time: it was ended by signal 9"
    )


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


def test_a_fingerprint_is_of_the_settings_that_decide_an_outcome_and_not_of_the_number_of_jails(
    backend: str,
) -> None:
    pools = [open_pool(backend, 1), open_pool(backend, 2)]
    pools += [
        type(pools[0])(replace(pools[0].config, folder_mb=folder_mb)) for folder_mb in (16, 8)
    ]
    first, second, same, smaller = [pool.fingerprint() for pool in pools]
    assert first == second == same != smaller
    for pool in pools:
        asyncio.run(pool.close())


def test_an_input_that_cannot_be_sent_is_the_callers_mistake(pool: JailPool) -> None:
    with pytest.raises(TypeError, match="a object is not a plain value"):
        run(pool, Program("def f(x): return x", "f", [(object(),)]))


def test_without_bubblewrap_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="apt install bubblewrap"):
        Bubblewrap()


def test_without_a_daemon_one_line_says_what_to_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("docker")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path / 'nobody.sock'}")
    with pytest.raises(ConfigError, match="start its daemon"):
        Docker()


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_kill_9_of_the_process_that_asked_leaves_nothing(marked: str) -> None:
    before = supervisors()
    code = (
        "import asyncio, os, signal\n"
        "from grpo_core import Program\n"
        "from grpo_sandbox import bundle\n"
        "from grpo_sandbox.bubblewrap import Bubblewrap\n"
        f"bundle._LOADER = {marked!r}\n"
        "pool = Bubblewrap()\n"
        "asyncio.run(pool.run([Program('def f(x): return x', 'f', [(i,) for i in range(8)])]))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    deadline = time.monotonic() + 10
    while supervisors() - before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert supervisors() - before == set()
