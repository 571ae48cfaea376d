"""Both back ends against real jails: what programs get, what attacks do not get, and what is left behind."""

import asyncio
import contextlib
import functools
import itertools
import os
import resource
import signal
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpo_core import ConfigError, Limits, Outcome, Program
from grpo_kit.sandboxes.hostile import MARKS, VICTIM
from grpo_sandbox import bundle
from grpo_sandbox.bubblewrap import Bubblewrap, BubblewrapConfig
from grpo_sandbox.docker import Docker, DockerConfig
from grpo_sandbox.pool import JailPool

from ..core.processes import wait_until
from .attacks import ATTACKS, KINDS
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
    wait_until(lambda: bool(supervisors() - known), 30)
    return supervisors() - known


def kill_one_beside(known: set[int]) -> None:
    """Kill -9 one of those that have been started since; some are short-lived, and gone when their turn comes."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for pid in sorted(supervisors_beside(known)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                return
    pytest.fail("there is no supervisor to kill")


def assert_none_beside(known: set[int]) -> None:
    """No supervisor of a test that began with `known` is left, or soon none is."""
    assert wait_until(lambda: supervisors() <= known, 20)


VALUES = [
    None, True, 0, -1, 2**53, -(2**200), 0.1, float("inf"), "", "ä\x00\ud800", b"\x00\xff", [], [1, [2, [3]]], (), (1, (2,)), {1, 2},
    frozenset({(1, 2)}), {}, {"a": 1, (1, 2): [None]}, {"ok": {"i": "1"}},
]  # fmt: skip


def test_values_come_back_as_they_went_in_with_their_types(one_jail: JailPool) -> None:
    (found,) = run(one_jail, Program("def f(x): return x", "f", [(value,) for value in VALUES]))
    assert [outcome.status for outcome in found] == ["ok"] * len(VALUES)
    for value, outcome in zip(VALUES, found, strict=True):
        assert (type(outcome.value), outcome.value) == (type(value), value)


def test_outcomes_of_a_batch_keep_their_order_and_their_programs(pool: JailPool) -> None:
    programs = [
        Program(f"def f(x): return x * {n}", "f", [(i,) for i in range(9)]) for n in range(4)
    ]
    values = [[outcome.value for outcome in row] for row in run(pool, *programs)]
    assert values == [[i * n for i in range(9)] for n in range(4)]


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
    # Other tests want the processor, too.
    limits = replace(SHORT, wall_seconds=30) if status == "timeout_cpu" else SHORT
    outcome = one(one_jail, source, 1, limits=limits)
    assert outcome.status == status, outcome
    assert bool(outcome.error) == (status not in ("ok", "oom"))
    assert outcome.wall_seconds < limits.wall_seconds + 2


def test_processor_time_is_limited_to_parts_of_a_second(one_jail: JailPool) -> None:
    source = "import time\ndef f(x):\n    while time.process_time() < x: pass\n    return x"
    limits = replace(SHORT, wall_seconds=30, cpu_seconds=0.2)
    assert one(one_jail, source, 0.1, limits=limits).value == 0.1
    late = one(one_jail, source, 0.5, limits=limits)
    assert (late.status, late.error) == ("timeout_cpu", "it used more than 0.2 s of CPU time")


def test_what_a_program_prints_is_kept_apart_from_what_it_claims(one_jail: JailPool) -> None:
    source = "import sys\ndef f(x):\n    print('out'); print('err', file=sys.stderr)\n    return x"
    outcome = one(one_jail, source, 3)
    assert (outcome.value, outcome.stdout, outcome.stderr) == (3, "out\n", "err\n")


LONG = {
    "taking time and space": ("endless loop", "memory", "full disk"),
    "staying": ("files that stay",),
    "blame": ("zombies", "signal of a machine"),
    "rights and processes": ("capabilities", "its whole group"),
    "the end of a call": ("claim in two halves",),
}
"""Kinds of attacks that take many seconds each, and quick ones among them."""
QUICK = [name for kind, attacks in KINDS.items() for name in LONG.get(kind, attacks)]
SOME_ATTACKS = pytest.mark.parametrize(
    "names",
    [QUICK, pytest.param([*(ATTACKS.keys() - {*QUICK})], marks=pytest.mark.slow)],
    ids=["quick ones", "those that take long"],
)


@functools.cache
def attacked(backend: str, *names: str) -> dict[str, tuple[Outcome, Outcome]]:
    """Return the outcome of each attack, and of the probe that ran next in the same jail.

    Each of six jails runs one attack after the other.
    """

    async def one_after_the_other(names: Sequence[str]) -> list[Any]:
        pool = open_pool(backend, 1)
        programs = [Program(ATTACKS[name], "f", [(1,)], SHORT) for name in names]
        rows = [await pool.run([program, PROBE]) for program in programs]
        await pool.close()
        return [(name, (row[0], after[0])) for name, (row, after) in zip(names, rows, strict=True)]

    async def all_of_them() -> list[list[Any]]:
        return await asyncio.gather(*(one_after_the_other(names[i::6]) for i in range(6)))

    return dict(itertools.chain(*asyncio.run(all_of_them())))


def is_harmless(outcome: Outcome, after: Outcome) -> bool:
    """Whether an attack is not paid, and its neighbour finds an empty folder and is right."""
    is_paid = outcome.status == "ok" and type(outcome.value) is int and outcome.value == 2
    is_blamed = outcome.status != "infra_error"
    return not is_paid and is_blamed and (after.status, after.value) == ("ok", UNDISTURBED)


@SOME_ATTACKS
def test_an_attack_gets_nothing_and_leaves_nothing(backend: str, names: list[str]) -> None:
    found = attacked(backend, *sorted(names))
    assert {name: pair for name, pair in found.items() if not is_harmless(*pair)} == {}


@pytest.mark.parametrize("name", THIEVES)
def test_a_program_finds_nothing_of_earlier_calls_in_a_jail(one_jail: JailPool, name: str) -> None:
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
    alone = replace(SHORT, processes=1)
    assert one(one_jail, "def f(x): return x", 1, limits=alone).value == 1


@pytest.mark.parametrize("trace", LEAVERS)
def test_a_program_leaves_no_trace_for_the_next_call(one_jail: JailPool, trace: str) -> None:
    leave, look, without = LEAVERS[trace]
    sources = f"import os\ndef f(x):\n    {leave}", f"import os\ndef f(x): return {look}"
    _, (outcome,) = run(one_jail, *(Program(source, "f", [(1,)], SHORT) for source in sources))
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


@pytest.fixture(scope="module")
def same_python() -> None:
    """Skip where the jails of the back ends have different versions of Python."""
    versions = set()
    for name in ("bubblewrap", "docker"):
        pool = opened(name, 1)
        versions.add(one(pool, "import sys\ndef f(x): return sys.version_info[:2]", 1).value)
        asyncio.run(pool.close())
    if len(versions) > 1:
        missing(f"different versions of Python: {versions}")


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


@SOME_ATTACKS
def test_the_same_programs_have_the_same_outcomes_under_both_back_ends(
    same_python: None, names: list[str]
) -> None:
    """Which of the two limits of time ends a program depends on how busy the machine is; that it is one of them does not."""
    ours, theirs = (
        {
            name: (outcome.status.removesuffix("_cpu").removesuffix("_wall"), repr(outcome.value))
            for name, (outcome, _) in attacked(backend, *sorted(names)).items()
        }
        for backend in ("bubblewrap", "docker")
    )
    assert {name for name in names if ours[name] != theirs[name]} <= DIFFERENT.keys()


@pytest.mark.sampled(1)
async def test_a_hanging_program_costs_its_own_deadline_and_no_one_elses(pool: JailPool) -> None:
    await pool.run([PROBE, PROBE])  # both jails are there
    limits = replace(SHORT, wall_seconds=5)  # longer than its neighbours take together
    program = Program("import time\ndef f(x): time.sleep(100)", "f", [(1,)], limits)
    hanging = asyncio.ensure_future(pool.run([program]))
    await asyncio.sleep(0.1)  # it is the first in the queue
    neighbours = await pool.run([PROBE] * 50)
    assert not hanging.done()  # the neighbours did not wait for it
    assert [row[0].value for row in neighbours] == [UNDISTURBED] * 50
    assert (await hanging)[0][0].status == "timeout_wall"


async def test_a_lost_supervisor_costs_no_program_its_verdict(pool: JailPool) -> None:
    """One kill -9 in the middle of a batch."""
    before = supervisors()
    await pool.run([PROBE, PROBE])
    source = "import time\ndef f(x):\n    time.sleep(0.2)\n    return x"
    program = Program(source, "f", [(i,) for i in range(20)], SHORT)
    batch = asyncio.ensure_future(pool.run([program]))
    await asyncio.sleep(0.7)
    kill_one_beside(before)
    (row,) = await batch
    assert [outcome.value for outcome in row] == list(range(20))


async def test_a_program_that_the_machine_ends_is_run_once_more(backend: str) -> None:
    """As a machine short of memory does, outside the container's own count: its choice falls on programs first."""
    before, pool = supervisors(), open_pool(backend, 1)
    await pool.run([PROBE])
    ours = supervisors() - before
    source = "import time\ndef f(x):\n    time.sleep(2)\n    return x"
    program = Program(source, "f", [(1,), (2,)], replace(SHORT, wall_seconds=30))
    batch = asyncio.ensure_future(pool.run([program]))
    started = await asyncio.to_thread(supervisors_beside, before | ours)
    await asyncio.sleep(0.2)
    os.kill(max(started), signal.SIGKILL)
    (row,) = await batch
    await pool.close()
    assert [outcome.value for outcome in row] == [1, 2], row


async def test_a_machine_without_a_free_file_descriptor_is_no_programs_fault_and_the_pool_goes_on() -> (
    None
):
    await opened("bubblewrap", 1).close()
    pool = Bubblewrap(BubblewrapConfig(jails=1, patience_seconds=0.5))
    assert (await pool.run([PROBE]))[0][0].value == UNDISTURBED
    for slot in pool._slots:
        slot.end_jail()  # the next call needs a new one
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        ((found,),) = await asyncio.wait_for(pool.run([PROBE]), 20)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (found.status, "could not be started" in found.error) == ("infra_error", True), found
    assert (await pool.run([PROBE]))[0][0].value == UNDISTURBED
    await pool.close()


@pytest.mark.slow
def test_a_program_that_ends_itself_is_not_the_machines_doing(one_jail: JailPool) -> None:
    source = "import os\ndef f(x): os.kill(os.getpid(), 9)"
    (row,) = run(one_jail, Program(source, "f", [(i,) for i in range(3)], SHORT))
    assert {(outcome.status, outcome.suspected) for outcome in row} == {("signal", True)}
    said = (
        "it failed 5 times where a known-good program ran; the last time: it was ended by signal 9"
    )
    assert row[0].error == said


def test_a_closed_pool_leaves_no_process_and_starts_again_when_asked(backend: str) -> None:
    before = supervisors()
    pool = open_pool(backend, 2)
    for _ in range(2):
        assert run(pool, PROBE)[0][0].value == UNDISTURBED
        assert supervisors() - before
        asyncio.run(pool.close())
        assert_none_beside(before)


def test_a_fingerprint_is_of_the_settings_that_decide_an_outcome_and_not_of_the_number_of_jails(
    one_jail: JailPool,
) -> None:
    pools = [
        type(one_jail)(replace(one_jail.config, **changed))  # type: ignore[attr-defined]
        for changed in ({"jails": 2}, {"folder_mb": 8})
    ]
    more_jails, smaller = [pool.fingerprint() for pool in pools]
    assert one_jail.fingerprint() == more_jails != smaller
    for pool in pools:
        asyncio.run(pool.close())


def test_an_input_that_cannot_be_sent_is_the_callers_mistake(one_jail: JailPool) -> None:
    with pytest.raises(TypeError, match="a object is not a plain value"):
        one(one_jail, "def f(x): return x", object())


def test_without_bubblewrap_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="apt install bubblewrap"):
        Bubblewrap()
