"""Sessions against real jails of both back ends: state, limits, hostile leftovers, lost jails."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpo_core import CommandResult, ConfigError, Limits, SandboxError, Session, current_call
from grpo_core.calls.call import Call
from grpo_sandbox.pool import JailPool

from .engines import IMAGE
from .test_backends import assert_none_beside, opened, supervisors, supervisors_beside
from .test_backends import backend as backend
from .test_backends import marked as marked

SHORT = Limits(wall_seconds=2, cpu_seconds=1, memory_mb=128, file_mb=2, processes=8)


@asynccontextmanager
async def using(pool: JailPool, files: Any = (), **settings: Any) -> AsyncIterator[Session]:
    """Yield a session with these files."""
    session = await pool.session(dict(files), **{"limits": SHORT, **settings})
    try:
        async with asyncio.timeout(120):
            yield session
    finally:
        await session.close()


async def results(pool: JailPool, *commands: Any, limits: Limits = SHORT) -> list[CommandResult]:
    async with using(pool, limits=limits) as session:
        return [await session.exec(command) for command in commands]


async def test_a_command_finds_what_the_ones_before_it_left(pool: JailPool) -> None:
    async with using(pool, {"given": "first"}) as session:
        await session.write({"src/a.py": "print(input())", "bytes": b"\xff\x00"})
        answer = await session.exec("python3 src/a.py > out; pwd; echo $HOME", input="ä\n")
        assert (answer.status, answer.exit_code) == ("ok", 0)
        assert answer.stdout == "/home/user\n" * 2
        assert await session.read("out") == "ä\n".encode()
        assert await session.read("bytes") == b"\xff\x00"
        assert (await session.exec(["cat", "out", "given"])).stdout == "ä\nfirst"
        script = "printf '#!/bin/sh\\necho ran' > s; chmod +x s; ./s; touch s t; rm out"
        assert (await session.exec(script)).stdout == "ran\n"
        assert (await session.exec("ls")).stdout.split() == ["bytes", "given", "s", "src", "t"]
        assert (await session.exec("umask; ulimit -c; env | wc -l")).status == "ok"


STATUSES = [
    ("exit 7", "ok", 7),
    (["no-such-program"], "no_result", None),
    (["a\x00b"], "no_result", None),
    ("echo '\ud800'", "ok", 0),
    ("kill -SEGV $$", "signal", None),
    ("while :; do :; done", "timeout_cpu", None),
    ("yes", "output_limit", None),
    ("yes > file", "ok", 153),
    ("python3 -c 'bytearray(10**9)'", "ok", 1),
    ("sleep 100 & sleep 100 & echo begun", "ok", 0),
    ("exec 0<&- 1>&- 2>&-; sleep 0.1", "ok", 0),
    ("x" * 200_000, "no_result", None),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("command", "status", "exit_code"), STATUSES, ids=range(len(STATUSES)))
async def test_every_way_to_end_has_the_same_status_under_both_back_ends(
    pool: JailPool, command: Any, status: str, exit_code: int | None
) -> None:
    limits = replace(SHORT, wall_seconds=30)
    ended, after = await results(pool, command, "echo after", limits=limits)
    assert (ended.status, ended.exit_code, ended.suspected) == (status, exit_code, False)
    assert (after.status, after.stdout) == ("ok", "after\n")


@pytest.mark.parametrize("line", [True, False], ids=["of a shell", "itself"])
async def test_a_command_that_the_kernel_ends_for_its_memory_is_named_so(
    pool: JailPool, backend: str, line: bool
) -> None:
    if backend != "docker":
        pytest.skip("only containers limit the memory of all processes")
    program = ("python3", "-c", "b'x' * 10**9")
    command = "python3 -c 'b\"x\" * 10**9'; exit $?" if line else program
    ended, after = await results(pool, command, "echo after", limits=Limits(memory_mb=4000))
    assert (ended.status, ended.suspected) == ("oom", False)
    assert (after.status, after.stdout) == ("ok", "after\n")


async def test_a_large_input_reaches_a_command_and_one_that_nobody_reads_ends(
    pool: JailPool,
) -> None:
    async with using(pool) as session:
        text = "x" * 3_000_000
        assert (await session.exec("wc -c", input=text)).stdout.strip() == "3000000"
        assert (await session.exec("true", input=text)).status == "ok"
        assert (await session.exec("head -c 3 | cat", input=text)).stdout == "xxx"


@pytest.mark.slow
async def test_a_command_that_waits_too_long_is_ended_and_the_session_goes_on(
    pool: JailPool,
) -> None:
    """Its processes wait until the deadline five times: each time a probe passes."""
    async with using(pool) as session:
        await session.exec("echo before > file")
        call = Call(100)
        with call.current():
            late = await session.exec("sleep 100", timeout=0.2)
        assert (late.status, late.suspected, call.cacheable) == ("timeout_wall", True, False)
        assert (await session.exec("cat file")).stdout == "before\n"


async def test_all_commands_have_a_time_limit_together(pool: JailPool) -> None:
    limits = Limits(wall_seconds=2, total_seconds=0.5)
    _, late = await results(pool, "sleep 0.6", "echo too late", limits=limits)
    assert (late.status, late.stdout, late.suspected) == ("timeout_wall", "", True)


async def test_no_process_outlives_its_command(pool: JailPool) -> None:
    daemon = (
        "python3 -c 'import os, time\n"
        "for _ in range(2):\n"
        "    if os.fork(): os._exit(0)\n"
        "    os.setsid()\n"
        'while True: open("beat", "a").write("x"); time.sleep(0.01)\''
    )
    _, first, second = await results(pool, daemon, "wc -c < beat", "sleep 0.3; wc -c < beat")
    assert first.stdout == second.stdout


async def test_two_sessions_at_once_and_one_after_the_other_do_not_see_each_other(
    backend: str,
) -> None:
    pool = opened(backend, 1)
    one, two = await pool.session(limits=SHORT), await pool.session(limits=SHORT)
    await one.exec("echo secret > file; mkdir -p deep/er; chmod 000 deep; ln -s / root")
    assert (await two.exec("ls -A")).stdout == ""
    sleeper = asyncio.ensure_future(one.exec("sleep 1.5; echo $?"))
    await asyncio.sleep(0.3)
    await two.exec("kill -9 -1; kill -9 1")
    assert (await sleeper).stdout == "0\n"
    for session in (one, two):
        await session.close()
    for _ in range(2):
        session = await pool.session(limits=SHORT)
        assert (await session.exec("ls -A; stat -c %a .")).stdout == "777\n"
        await session.close()
    await pool.close()


HOSTILE = {
    "a symlink to a file outside": "ln -s /etc/passwd target",
    "a fifo": "mkfifo target",
    "a full folder": "mkdir -p target/a/b; echo x > target/a/b/c; chmod 000 target/a target",
    "a hard link": "echo other > other; ln other target",
    "a read-only folder": "echo x > target; chmod 555 .",
    "thousands of files": "mkdir target; cd target; seq 3000 | xargs touch",
}


@pytest.mark.parametrize("trap", HOSTILE.values(), ids=HOSTILE)
async def test_a_write_replaces_whatever_is_at_its_path_and_a_read_gives_its_content(
    pool: JailPool, trap: str
) -> None:
    async with using(pool) as session:
        await session.exec(trap)
        if "other" not in trap:
            assert await session.read("target") in (None, b"x\n")
        await session.write({"target": "of the verifier"})
        assert await session.read("target") == b"of the verifier"
        assert (await session.exec("cat target; cat other")).stdout in (
            "of the verifier",
            "of the verifierother\n",
        )


async def test_folders_above_a_file_are_made_in_place_of_links_and_files(pool: JailPool) -> None:
    async with using(pool) as session:
        await session.exec("ln -s /tmp a; echo x > b; mkdir c; chmod 000 c; ln -s . d")
        await session.write({"a/x": "1", "b/x": "2", "c/x": "3"})
        assert [await session.read(f"{name}/x") for name in "abc"] == [b"1", b"2", b"3"]
        assert await session.read("d/b/x") is None


async def test_only_regular_files_up_to_the_limit_are_read(pool: JailPool) -> None:
    async with using(pool) as session:
        await session.exec("mkfifo fifo; truncate -s 1M sparse; mkdir d; : > empty; ln -s empty l")
        for path in ("fifo", "sparse", "d", "l", "none", "none/x", "empty/x"):
            assert await session.read(path) is None, path
        assert await session.read("empty") == b""
        assert len(await session.read("sparse", limit=1 << 20) or b"") == 1 << 20


@pytest.mark.parametrize("path", ["", "/x", "a/../../x", "a\x00b", "n" * 300])
async def test_a_path_outside_the_folder_is_the_callers_mistake(pool: JailPool, path: str) -> None:
    async with using(pool) as session:
        with pytest.raises(ValueError, match="path"):
            await session.write({path: ""})
        with pytest.raises(ValueError, match="path"):
            await session.read(path)


FILLERS = {
    "disk": "for i in $(seq 100); do head -c 1900000 /dev/zero > f$i || break; done",
    "inodes": "python3 -c 'for i in range(10**5): open(str(i), \"w\").close()'",
}


@pytest.mark.parametrize("fill", FILLERS.values(), ids=FILLERS)
async def test_a_write_for_which_commands_left_no_room_ends_a_session(
    pool: JailPool, fill: str
) -> None:
    async with using(pool, limits=Limits(cpu_seconds=5, file_mb=2)) as session:
        await session.exec(fill)
        await session.write({"check.py": "print('passed')" + "#" * 2_000_000})
        answer = await session.exec("python3 check.py")
        assert (answer.status, answer.stdout) == ("no_result", "")
        assert "No space left" in answer.error
        assert await session.read("check.py") is None


async def test_files_that_do_not_fit_before_any_command_are_the_callers_mistake(
    pool: JailPool,
) -> None:
    with pytest.raises(ValueError, match="session_mb"):
        await pool.session({f"f{number}": b"x" * 30_000_000 for number in range(3)})


async def test_a_jail_that_is_lost_while_a_session_is_idle_or_at_work_is_made_again(
    backend: str,
) -> None:
    before, pool = supervisors(), opened(backend, 1)
    session = await pool.session({"a": "1"})
    await session.exec("echo 2 >> a")
    for _ in range(2):
        await kill_jails(before)
        await asyncio.sleep(0.2)
        call = Call(100)
        with call.current():
            answer = await session.exec("cat a")
        assert (answer.stdout, answer.suspected, call.cacheable) == ("12\n", False, False)
    working = asyncio.ensure_future(session.exec("sleep 1; echo 3 >> a; cat a"))
    await asyncio.sleep(0.5)
    await kill_jails(before)
    assert (await working).stdout == "12\n3\n"
    assert await session.read("a") == b"12\n3\n"
    await session.close()
    await pool.close()


async def kill_jails(known: set[int]) -> None:
    for pid in await asyncio.to_thread(supervisors_beside, known):
        with contextlib.suppress(ProcessLookupError):  # it has ended since
            os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
async def test_a_program_that_ends_itself_again_and_again_does_not_become_an_error(
    pool: JailPool,
) -> None:
    ended, after = await results(pool, "echo x > kept; kill -9 $$", "cat kept")
    assert (ended.status, ended.suspected) == ("signal", True)
    assert (after.status, after.stdout) == ("ok", "x\n")


async def test_a_cancelled_command_is_ended_and_the_session_goes_on(pool: JailPool) -> None:
    async with using(pool) as session:
        await session.exec("echo 1 > a")
        working = asyncio.ensure_future(session.exec("echo 2 >> a; sleep 4; echo 3 >> a"))
        await asyncio.sleep(0.5)
        working.cancel()
        started = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await working
        assert time.monotonic() - started < 3
        assert (await session.exec("cat a")).stdout == "1\n"


async def test_more_sessions_than_may_be_open_wait_with_their_clock_stopped(backend: str) -> None:
    pool: Any = opened(backend, 1)
    pool = type(pool)(replace(pool.config, sessions=1))
    first = await pool.session()
    call = Call(0.2)

    async def second() -> float:
        with call.current():
            await (await pool.session()).close()
        return call.left()

    waiting = asyncio.ensure_future(second())
    gave_up = asyncio.ensure_future(pool.session())
    await asyncio.sleep(0.5)
    assert not waiting.done()
    gave_up.cancel()
    await first.close()
    assert await waiting > 0
    await pool.session()
    too_late = asyncio.ensure_future(pool.session())
    await asyncio.sleep(0.1)
    await pool.close()
    with pytest.raises(SandboxError, match="was closed"):
        await too_late


async def test_closing_the_sandbox_ends_its_sessions_and_leaves_nothing(backend: str) -> None:
    before, pool = supervisors(), opened(backend, 1)
    session = await pool.session()
    working = asyncio.ensure_future(session.exec("sleep 4"))
    await asyncio.sleep(0.3)
    await pool.close()
    for ended in (working, session.exec("true"), session.write({"a": ""})):
        with pytest.raises(SandboxError, match="closed"):
            await ended
    await session.close()
    await session.close()
    assert_none_beside(before)


KILLED = """
import asyncio, os, signal
from grpo_core import Program
from grpo_sandbox import bundle
from grpo_sandbox.BACKEND import CLASS
bundle._LOADER = LOADER
async def main():
    pool = CLASS()
    await pool.run([Program('def f(x): return x', 'f', [(i,) for i in range(8)])])
    session = await pool.session({'a': '1'})
    await session.exec('true')
    asyncio.ensure_future(session.exec('sleep 60 & sleep 60'))
    await asyncio.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""


def test_kill_9_of_a_process_with_open_sessions_leaves_nothing(backend: str, marked: str) -> None:
    before = supervisors()
    code = KILLED.replace("BACKEND", backend).replace("CLASS", backend.capitalize())
    done = subprocess.run(
        [sys.executable, "-c", code.replace("= LOADER", f"= {marked!r}")],
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert_none_beside(before)


def test_an_image_that_is_not_there_is_a_mistake_of_the_config(pool: JailPool) -> None:
    for _ in range(2):
        with pytest.raises(ConfigError, match="no-such-image"):
            asyncio.run(pool.session(image="no-such-image"))


@pytest.fixture
def image() -> Iterator[Path]:
    """A root folder for bubblewrap, which any user can read: that of the image which Docker has."""
    asyncio.run(opened("docker", 1).close())
    made = subprocess.run(["docker", "create", IMAGE, "true"], capture_output=True, check=True)
    container = made.stdout.decode().strip()
    with tempfile.TemporaryDirectory(prefix="grpo-root-") as folder:
        root = Path(folder, "root")
        root.mkdir()
        root.parent.chmod(0o755)
        export = f"docker export {container} | tar -x -C {root}"
        subprocess.run(["sh", "-c", export], check=True)
        subprocess.run(["docker", "rm", container], capture_output=True, check=True)
        yield root


@pytest.mark.slow
def test_an_image_holds_what_it_holds_and_is_refused_with_an_environment_in_it(image: Path) -> None:
    (image / "opt" / "mark").write_text("of the image")

    async def whole(pool: JailPool) -> str:
        try:
            session = await pool.session(image=str(image))
            return (await session.exec("cat /opt/mark")).stdout
        finally:
            await pool.close()

    assert asyncio.run(whole(opened("bubblewrap", 1))) == "of the image"
    (image / "opt" / "grpo_core").mkdir()
    (image / "opt" / "grpo_core" / "__init__.py").write_text("")
    with pytest.raises(ConfigError, match="could read the answers"):
        asyncio.run(whole(opened("bubblewrap", 1)))


@pytest.mark.heavy
async def test_sixty_four_sessions_are_open_at_once(backend: str) -> None:
    pool = opened(backend, 1)
    sessions = await asyncio.gather(*(pool.session({"n": str(n)}) for n in range(64)))
    answers = await asyncio.gather(*(session.exec("cat n") for session in sessions))
    await asyncio.gather(*(session.close() for session in sessions))
    await pool.close()
    assert [answer.stdout for answer in answers] == [str(number) for number in range(64)]
    assert current_call().cacheable
