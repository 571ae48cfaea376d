"""What programs could tell each other by what two jails, or two calls in one jail, have in common."""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from grpo_core import Limits, Program
from grpo_sandbox.pool import JailPool

from .siblings import DIALOGUES, HOW_MUCH, hide
from .test_backends import SHORT, open_pool, opened, run

PATIENT = Limits(wall_seconds=30, cpu_seconds=20)
SECRET = 789


@pytest.fixture(scope="module", params=["bubblewrap", "docker"])
def two_jails(request: pytest.FixtureRequest) -> Iterator[JailPool]:
    """A pool both of whose jails are ready."""
    asyncio.run(opened(str(request.param), 1).close())
    pool = open_pool(str(request.param), 2)
    run(pool, *[Program("import time\ndef f(x): time.sleep(0.5)", "f", [(1,)], SHORT)] * 2)
    yield pool
    asyncio.run(pool.close())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", DIALOGUES)
def test_two_programs_that_run_at_the_same_time_cannot_talk(two_jails: JailPool, name: str) -> None:
    says, hears = (Program(source, "f", [(SECRET,)], PATIENT) for source in DIALOGUES[name])
    _, (heard,) = run(two_jails, says, hears)
    assert heard.status in ("ok", "exception"), heard
    assert heard.value is None


def test_a_program_does_not_learn_how_much_another_printed_or_returned(two_jails: JailPool) -> None:
    """Whether a result has 12 bytes or 13 may be the whole answer."""
    # No table has such numbers.
    out, error, result = random.sample(range(11_000_001, 14_000_000, 1000), 3)
    limits = replace(PATIENT, output_bytes=15_000_000, result_bytes=15_000_000, memory_mb=500)
    source = "import sys\ndef f(out, error, result):\n    print('x' * out, end='')\n    sys.stderr.write('x' * error)\n    return 'x' * result"
    victim = Program(source, "f", [(out, error, result)], limits)
    claimed = result + len('{"ok": ""}')
    thief = Program(HOW_MUCH, "f", [(hide([out, error, claimed, claimed + 1]),)], PATIENT)
    rows = run(two_jails, victim, victim, victim, victim, thief)
    assert {len(row[0].stdout) for row in rows[:4]} == {out}
    assert rows[4][0].value == 0, rows[4][0]


def test_that_search_finds_sizes_that_are_there(two_jails: JailPool) -> None:
    source = f"import struct\n{HOW_MUCH}\nheld = struct.pack('<Q', 54_000 + 321)"
    assert run(two_jails, Program(source, "f", [(hide([54_321]),)], PATIENT))[0][0].value == 1


def test_a_program_with_many_processes_stays_one_session_that_shares_the_processors_with_others() -> (
    None
):
    """The kernel gives each session a share; Docker gives each container one."""
    pool = opened("bubblewrap", 1)
    source = """
import os, time
def f(x):
    made = []
    for _ in range(5):
        made.append(os.fork())
        if made[-1] == 0:
            os.setsid()
            time.sleep(10)
    time.sleep(0.3)
    return {os.getsid(pid) for pid in (0, *made)} == {os.getsid(0)}
"""
    (outcome,) = run(pool, Program(source, "f", [(1,)], PATIENT))[0]
    asyncio.run(pool.close())
    assert outcome.value is True, outcome


def test_what_a_program_needs_of_calls_refused_in_part_still_works(two_jails: JailPool) -> None:
    source = """
import os, sqlite3, subprocess, sys, threading
def f(x):
    with sqlite3.connect("a.db") as base:
        base.execute("create table t (a)")
        base.execute("insert into t values (7)")
    threads = [threading.Thread(target=print, args=(number,)) for number in range(3)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    apart = subprocess.run([sys.executable, "-c", "print(8)"], capture_output=True, text=True, start_new_session=True)
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    with open("b", "wb") as file: file.write(b"abc")
    copied = os.preadv(os.open("b", os.O_RDONLY), [bytearray(2)], 1)
    return sqlite3.connect("a.db").execute("select a from t").fetchall(), apart.stdout, copied, os.isatty(0)
"""
    (outcome,) = run(two_jails, Program(source, "f", [(1,)], replace(PATIENT, memory_mb=500)))[0]
    assert outcome.value == ([(7,)], "8\n", 2, False), outcome
