"""How the processes of a run meet, what they tell each other, and who is refused."""

import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grpo_core.calls.meeting_folder import VARIABLE, meeting_folder
from grpo_core.engine.ranks.messages import from_json, to_json
from grpo_core.protocol.types import Verdict

from .processes import HERE, start

FORKS = f"""
import os, runpy, sys, traceback
import psutil, torch.distributed, grpo_core.engine.ranks  # once for all processes

def begin(case, folder, rank):
    pid = os.fork()
    if pid:
        return pid
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), {VARIABLE}=folder)
    output = os.open(case + "." + str(rank), os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1), os.dup2(output, 2)
    sys.argv = ["joined.py", case]
    try:
        runpy.run_path({str(HERE / "joined.py")!r}, run_name="__main__")
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)

os.chdir(sys.argv.pop())
for case, folder in zip(sys.argv[1::2], sys.argv[2::2]):
    for pid in [begin(case, folder, rank) for rank in range(int(os.environ["WORLD_SIZE"]))]:
        os.waitpid(pid, 0)
"""
"""Starts the processes of one case after the other: python -c FORKS [CASE MEETING-FOLDER]... OUT."""


def results(*cases: str, out: Path, count: int = 2) -> dict[str, list[Any]]:
    """What each of the processes printed that met in a private folder, as `--processes` makes one; by case."""
    out.mkdir()
    more = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "PLANTED": str(out / "planted")}
    # Also where the user's settings name another interface for runs on several machines.
    more |= {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "eth0"}
    with contextlib.ExitStack() as stack:
        folders = [str(stack.enter_context(meeting_folder(count)).path) for _ in cases]
        given = [word for pair in zip(cases, folders, strict=True) for word in pair]
        (parent,) = start(1, "-c", FORKS, *given, str(out), log=out / "log", **more)
        assert parent.wait(240) == 0, (out / "log.0").read_text()
    return {
        case: [answer((out / f"{case}.{rank}").read_text()) for rank in range(count)]
        for case in cases
    }


def by_environment(*arguments: str, log: Path, **more: str) -> list[Any]:
    """What two processes printed that torchrun starts, with no folder."""
    for process in start(2, *arguments, log=log, **more):
        process.wait(120)
    return [answer((log.parent / f"{log.name}.{rank}").read_text()) for rank in range(2)]


def answer(output: str) -> Any:
    """Return the last line of JSON; torch may print another one when the process ends."""
    for line in reversed(output.splitlines()):
        with contextlib.suppress(ValueError):
            return json.loads(line)
    return None


@pytest.fixture(scope="module")
def met(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """The results of four cases, and under "planted" whether a pickle was loaded."""
    out = tmp_path_factory.mktemp("met") / "out"
    found = results("values", "ports", "poisoned", "dead", out=out)
    return {**found, "planted": [(out / "planted").exists()]}


@pytest.mark.slow
def test_values_of_all_kinds_arrive_as_they_were_in_messages_of_any_length(met):
    assert met["values"] == [1, 1]


@pytest.mark.slow
def test_processes_listen_on_the_loopback_interface_only_and_leave_no_secret(met):
    for listening, is_named, files in met["ports"]:
        assert listening
        assert all(address.startswith("127.") for address in listening)
        assert not is_named
        assert files == ["arrivals", "store"]


@pytest.mark.slow
def test_a_pickle_is_not_loaded(met):
    first, second = met["poisoned"]
    assert first.startswith("RunStoppedError: process 1 sent what cannot be read")
    assert second == "sent"
    assert met["planted"] == [False]


@pytest.mark.slow
def test_a_value_of_another_type_is_refused_before_the_others_wait_in_a_collective(tmp_path):
    first, second = results("unknown", out=tmp_path / "out")["unknown"]
    assert "of the type 'Planted'" in second
    assert first.startswith("RunStoppedError: process 1 of 2 did not arrive within 15 s")


@pytest.mark.parametrize(
    "text",
    [
        b"", b"\x80\x04.", b"{", b"\xff", b'{"\\u0000": 1}', b'{"\\u0000": ["os.system", ["x"]]}',
        b'{"\\u0000": ["Verdict", [1]]}', b'{"\\u0000": ["tuple", 1]}', b"[" * 10**5,
        b'{"\\u0000": ["bytes", "?"]}', b'{"\\u0000": [["x"], 1]}', b'{"\\u0000": ["Path", 1]}',
        b'{"\\u0000": ["q", "AAAA"]}', b'{"\\u0000": ["u", "AAAA"]}',
        b'{"\\u0000": ["dict", [[[], 1]]]}', b'{"\\u0000": ["Reward", [1,1,"",0,[2]]]}',
    ],
)  # fmt: skip
def test_what_no_process_wrote_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        from_json(text)


def test_json_of_any_depth_that_a_verifier_may_return_arrives():
    deep: Any = 1
    for _ in range(900):
        deep = [deep]
    verdict = Verdict(detail={"deep": deep})
    assert from_json(to_json([verdict])) == [verdict]


def listening() -> set[int]:
    """Return the ports of the loopback interface on which somebody listens."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    mine = [line[1] for line in lines if line[3] == "0A" and line[1].startswith("0100007F:")]
    return {int(address.split(":")[1], 16) for address in mine}


@contextlib.contextmanager
def stranger() -> Iterator[list[int]]:
    """Connect to each new port on the loopback interface before others do, in anybody's place; the ports."""
    ended, ports, kept = threading.Event(), list[int](), list[socket.socket]()

    def connect() -> None:
        known = listening()
        while not ended.is_set():
            for port in listening() - known:
                known.add(port)
                ports.append(port)
                for place in range(4):  # gloo takes whoever sends the number of a place
                    with contextlib.suppress(OSError):
                        kept.append(socket.create_connection(("127.0.0.1", port)))
                        kept[-1].sendall(struct.pack("<q", place))
            time.sleep(0.02)

    thread = threading.Thread(target=connect)
    thread.start()
    try:
        yield ports
    finally:
        ended.set()
        thread.join()
        for connection in kept:
            connection.close()


@pytest.mark.slow
def test_a_stranger_who_connects_in_the_place_of_a_process_is_not_talked_to(tmp_path):
    """Which of two processes connects to the other depends on their ports, so it is tried until the stranger is in."""
    for attempt in range(8):
        with stranger() as ports:
            ended = results("late", out=tmp_path / f"out{attempt}")["late"]
        assert ports
        if ended != [[0, 1], [0, 1]]:
            break
    for text in ended:
        assert text.startswith("RunStoppedError: the processes cannot show each other that they")
        assert "another program has connected in its place" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("second", "told"),
    [
        ("a" * 32, None),
        *((other, " of 2 does not have the secret of this run") for other in ("b" * 32, "")),
        ("hunter2", "GRPO_SECRET has 7 characters"),
    ],
    ids=["same", "another", "none", "one that can be guessed"],
)
def test_a_process_with_another_secret_or_none_is_refused(tmp_path, second, told):
    """Two processes that meet at one address, each with a secret of its own."""
    script = (
        "import os, runpy, sys; rank = os.environ['RANK'];"
        "secret = os.environ.pop('SECRET' + rank); "
        "os.environ.update({'GRPO_SECRET': secret} if secret else {});"
        "sys.argv = ['joined.py', 'joined'];"
        f"runpy.run_path({str(HERE / 'joined.py')!r}, run_name='__main__')"
    )
    first = second if second == "hunter2" else "a" * 32
    secrets = {"SECRET0": first, "SECRET1": second}
    outcome = by_environment("-c", script, log=tmp_path / "log", **secrets)
    if told is None:
        assert outcome == [[0, 1], [0, 1]]
        return
    for rank, text in enumerate(outcome):
        assert (f"process {1 - rank}{told}" if told.startswith(" of") else told) in text
        assert "GRPO_SECRET" in text


def test_nobody_waits_for_ever_for_a_process_that_died_before_they_met(met):
    first, second = met["dead"]
    assert second is None
    assert "process 1 of 2 did not arrive within 2 s" in first


@pytest.mark.slow
def test_three_processes_meet(tmp_path):
    assert results("joined", out=tmp_path / "out", count=3)["joined"] == [[0, 1, 2]] * 3
