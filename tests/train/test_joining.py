"""How the processes of a run meet, what they tell each other, and who is refused."""

from __future__ import annotations

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
from grpo_core.train.ranks.messages import from_json, to_json

from .processes import HERE, start


def results(case: str, log: Path, *, count: int = 2, **more: str) -> list[Any]:
    """What each of the processes printed that met in a private folder, as `--processes` makes one."""
    with meeting_folder(count) as meeting:
        return by_environment(case, log, count=count, **{VARIABLE: str(meeting.path)}, **more)


def by_environment(case: str, log: Path, *, count: int = 2, **more: str) -> list[Any]:
    """As torchrun starts them, where `more` has no folder."""
    processes = start(count, str(HERE / "joined.py"), case, log=log, **more)
    for process in processes:
        process.wait(120)
    texts = [(log.parent / f"{log.name}.{rank}").read_text() for rank in range(count)]
    return [answer(text) for text in texts]


def answer(output: str) -> Any:
    """Return the last line of JSON; torch may print another one when the process ends."""
    for line in reversed(output.splitlines()):
        with contextlib.suppress(ValueError):
            return json.loads(line)
    return None


def test_values_of_all_kinds_arrive_as_they_were_in_messages_of_any_length(tmp_path: Path) -> None:
    assert results("values", tmp_path / "log") == [1, 1]


def test_processes_listen_on_the_loopback_interface_only_and_leave_no_secret(
    tmp_path: Path,
) -> None:
    """Also where the user's settings name another interface for runs on several machines."""
    more = {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "eth0"}
    for listening, is_named, files in results("ports", tmp_path / "log", **more):
        assert listening
        assert all(address.startswith("127.") for address in listening)
        assert not is_named
        assert files == ["arrivals", "store"]


def test_a_pickle_is_not_loaded(tmp_path: Path) -> None:
    planted = tmp_path / "planted"
    first, second = results("poisoned", tmp_path / "log", PLANTED=str(planted))
    assert first.startswith("RunStoppedError: process 1 sent what cannot be read")
    assert second == "sent"
    assert not planted.exists()


@pytest.mark.slow
def test_a_value_of_another_type_is_refused_before_the_others_wait_in_a_collective(
    tmp_path: Path,
) -> None:
    first, second = results("unknown", tmp_path / "log", PLANTED="")
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
def test_what_no_process_wrote_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        from_json(text)


def test_json_of_any_depth_that_a_verifier_may_return_arrives() -> None:
    from grpo_core.protocol.types import Verdict

    deep: Any = 1
    for _ in range(900):
        deep = [deep]
    verdict = Verdict(detail={"deep": deep})
    assert from_json(to_json([verdict])) == [verdict]


@contextlib.contextmanager
def stranger() -> Iterator[list[int]]:
    """Connect to each new port on the loopback interface before others do, in anybody's place; the ports."""
    ended, ports, kept = threading.Event(), list[int](), list[socket.socket]()

    def listening() -> set[int]:
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return {
            int(line[1].split(":")[1], 16)
            for line in lines
            if line[3] == "0A" and line[1].startswith("0100007F:")
        }

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
def test_a_stranger_who_connects_in_the_place_of_a_process_is_not_talked_to(tmp_path: Path) -> None:
    """Which of two processes connects to the other depends on their ports, so it is tried until the stranger is in."""
    for attempt in range(8):
        with stranger() as ports:
            ended = results("late", tmp_path / f"log{attempt}")
        assert ports
        if ended != [[0, 1], [0, 1]]:
            break
    for text in ended:
        assert text.startswith("RunStoppedError: the processes cannot show each other that they")
        assert "another program has connected in its place" in text


@pytest.mark.slow
def test_a_process_with_another_secret_or_none_is_refused(tmp_path: Path) -> None:
    """Two processes that meet at one address, each with a secret of its own."""
    script = (
        "import os, runpy, sys; rank = os.environ['RANK'];"
        "secret = os.environ.pop('SECRET' + rank); "
        "os.environ.update({'GRPO_SECRET': secret} if secret else {});"
        "sys.argv = ['joined.py', 'joined'];"
        f"runpy.run_path({str(HERE / 'joined.py')!r}, run_name='__main__')"
    )
    outcomes = []
    for first, second in (("a" * 32, "a" * 32), ("a" * 32, "b" * 32), ("a" * 32, "")):
        log = tmp_path / f"log{len(outcomes)}"
        for process in start(2, "-c", script, log=log, SECRET0=first, SECRET1=second):
            process.wait(120)
        texts = [(tmp_path / f"{log.name}.{rank}").read_text() for rank in range(2)]
        outcomes.append([json.loads(text.splitlines()[-1]) for text in texts])
    assert outcomes[0] == [[0, 1], [0, 1]]
    for refusal in outcomes[1:]:
        for rank, text in enumerate(refusal):
            assert f"process {1 - rank} of 2 does not have the secret of this run" in text
            assert "GRPO_SECRET" in text


@pytest.mark.slow
def test_a_secret_that_can_be_guessed_is_refused(tmp_path: Path) -> None:
    texts = by_environment("joined", tmp_path / "log", GRPO_SECRET="hunter2")
    assert all("GRPO_SECRET has 7 characters" in text for text in texts)


@pytest.mark.slow
def test_nobody_waits_for_ever_for_a_process_that_died_before_they_met(tmp_path: Path) -> None:
    first, second = results("dead", tmp_path / "log")
    assert second is None
    assert "process 1 of 2 did not arrive within 2 s" in first


@pytest.mark.slow
def test_three_processes_meet(tmp_path: Path) -> None:
    assert results("joined", tmp_path / "log", count=3) == [[0, 1, 2]] * 3
