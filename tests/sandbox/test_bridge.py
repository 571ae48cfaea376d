"""Sessions that reach one Unix socket of this machine: by ordinary clients, and nothing else, in real jails of both back ends."""

import asyncio
import contextlib
import json
import os
import socketserver
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from grpo_core import SESSION_PORT, ConfigError, Limits, SandboxError, Session
from grpo_kit.sandboxes.session_sockets import check_session_sockets
from grpo_sandbox.bridge import SOCKET, Bridge
from grpo_sandbox.inside.forward import connect_to
from grpo_sandbox.pool import JailPool

from ..core.processes import wait_until
from .test_backends import backend as backend
from .test_backends import marked as marked
from .test_backends import opened, supervisors
from .test_sessions import kill_jails, using

LIMITS = Limits(wall_seconds=20, cpu_seconds=5, memory_mb=1000, processes=24)
GET = f"""
import sys, urllib.request
for path in sys.argv[1:]:
    with urllib.request.urlopen(f"http://127.0.0.1:{SESSION_PORT}/{{path}}", timeout=10) as answer:
        print(answer.read().decode())
"""


class Handler(BaseHTTPRequestHandler):
    """Answers with the path, the size of a body, or parts with pauses between."""

    protocol_version = "HTTP/1.1"

    def finish(self) -> None:
        with contextlib.suppress(OSError):
            super().finish()

    def do_GET(self) -> None:
        if self.path == "/stream":
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for part in ("one", "two", ""):
                self.wfile.write(f"{len(part):x}\r\n{part}\r\n".encode())
                time.sleep(0.5)
            return
        self._answer(self.path.encode())

    def do_POST(self) -> None:
        left = int(self.headers["Content-Length"])
        size = left
        while left and (part := self.rfile.read(min(left, 1 << 16))):
            left -= len(part)
        self._answer(str(size).encode())

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return "a session"

    def log_message(self, *_: object) -> None: ...


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_: object) -> None: ...


@contextlib.contextmanager
def listening(path: Path, handler: type[Handler] = Handler) -> Iterator[None]:
    server = Server(str(path), handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        path.unlink()


@pytest.fixture
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A socket at which an HTTP server listens."""
    path = tmp_path_factory.mktemp("s") / "http"
    with listening(path):
        yield path


def reaching(pool: JailPool, path: Path | None) -> AbstractAsyncContextManager[Session]:
    """A session that reaches the socket at `path`."""
    return using(pool, {"get.py": GET}, limits=LIMITS, socket=path)


@pytest.mark.sampled(2)
async def test_ordinary_clients_reach_the_socket(pool: JailPool, path: Path) -> None:
    """One connection after the other, many at once, a large body, and an answer that comes in parts."""
    source = f"""
import http.client, json, threading, time
def ask(number, found=[]):
    client = http.client.HTTPConnection("127.0.0.1", {SESSION_PORT}, timeout=15)
    for word in "abc":
        client.request("GET", f"/{{number}}{{word}}")
        found.append(client.getresponse().read().decode())
    return found
threads = [threading.Thread(target=ask, args=(n,)) for n in range(12)]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
client = http.client.HTTPConnection("127.0.0.1", {SESSION_PORT}, timeout=15)
client.request("POST", "/size", b"x" * 20_000_000)
size = int(client.getresponse().read())
client.request("GET", "/stream")
answer, times = client.getresponse(), []
while answer.read1(3): times.append(time.time())
print(json.dumps([sorted(ask(0, [])), len(ask.__defaults__[0]), size, times[1] - times[0]]))
"""
    async with reaching(pool, path) as session:
        await session.write({"clients.py": source})
        result = await session.exec("python3 clients.py")
        assert result.exit_code == 0, result
        first, answers, size, between = json.loads(result.stdout)
        assert first == ["/0a", "/0b", "/0c"]
        assert (answers, size) == (36, 20_000_000)
        assert between > 0.3


@pytest.mark.slow
def test_nothing_else_of_a_network_is_reached(pool: JailPool) -> None:
    """The attacks of `grpo sandbox check`: other sockets, addresses and protocols, names, and taking all there is."""
    results = asyncio.run(check_session_sockets(pool))
    assert [(result.check, result.message) for result in results if result.status != "valid"] == []
    assert len(results) == 10


async def test_programs_cannot_listen_or_have_other_sockets(pool: JailPool, path: Path) -> None:
    source = """
import socket
for work in (
    lambda: socket.socket().bind(("127.0.0.1", 0)),
    lambda: socket.socket().listen(),
    lambda: socket.socket(socket.AF_UNIX).bind("here"),
    lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
    lambda: socket.socket(socket.AF_INET6),
    lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262),
    lambda: socket.socketpair(),
    lambda: socket.socket().connect(("127.0.0.1", 1)),
):
    try: work(); print("works")
    except OSError as error: print(type(error).__name__)
"""

    refused = ["PermissionError"] * 3 + ["OSError"] * 3
    async with reaching(pool, path) as session:
        done = await session.exec(["python3", "-c", source])
    assert done.stdout.split() == [*refused, "works", "ConnectionRefusedError"]


@pytest.mark.slow
async def test_no_command_ends_the_way_to_the_socket(pool: JailPool, path: Path) -> None:
    async with reaching(pool, path) as session:
        for line in ("kill -9 -1", "for p in 1 2 3 4 5 6 7 8 9; do kill -9 $p; done", "kill -9 1"):
            await session.exec(line)
            assert (await session.exec("python3 get.py b")).stdout == "/b\n"
        bomb = await session.exec("f() { f | f & }; f; sleep 0.5", timeout=2)
        assert bomb.status in ("ok", "timeout_wall", "timeout_cpu", "signal")
        assert (await session.exec("python3 get.py c")).stdout == "/c\n"


async def test_a_server_that_starts_again_is_reached_again(
    pool: JailPool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("s") / "http"

    with contextlib.ExitStack() as first:
        first.enter_context(listening(path))
        async with reaching(pool, path) as session:
            first.close()
            gone = await session.exec("python3 get.py a")
            assert (gone.status, gone.exit_code) == ("ok", 1)
            assert "Connection" in gone.stderr or "RemoteDisconnected" in gone.stderr
            with listening(path):
                assert (await session.exec("python3 get.py a")).stdout == "/a\n"


def test_the_outer_half_leaves_no_descriptor(path: Path) -> None:
    """Whether its connections have ended or not, and however often it is closed."""

    def once() -> None:
        bridge = Bridge(path)
        kept = [connect_to(str(bridge.folder / SOCKET)) for _ in range(10)]
        kept[0].setblocking(True)
        kept[0].sendall(b"GET /a HTTP/1.0\r\n\r\n")
        assert b"/a" in kept[0].makefile("rb").read()
        for each in kept[:5]:
            each.close()
        bridge.close()
        bridge.close()
        for each in kept:
            each.close()

    once()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        once()
    # As soon as the server has noticed.
    assert wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before)


async def test_what_is_no_socket_is_the_callers_mistake(pool: JailPool, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("nothing", "file", "", "x" * 200, "a\0b"):
        with pytest.raises(ConfigError, match="there is none at this path"):
            await pool.session(socket=tmp_path / name)
    async with reaching(pool, None) as session:
        assert (await session.exec("echo x")).stdout == "x\n"


@pytest.mark.slow
async def test_no_command_runs_twice_and_a_lost_jail_is_an_error(backend: str, path: Path) -> None:
    """What was asked cannot be taken back. Before the first command a jail is made again as ever."""

    before, pool = supervisors(), opened(backend, 1)
    session = await pool.session({"get.py": GET}, limits=LIMITS, socket=path)
    await kill_jails(before)
    await asyncio.sleep(0.3)
    assert (await session.exec("python3 get.py a")).stdout == "/a\n"
    await kill_jails(before)
    for _ in range(2):
        with pytest.raises(SandboxError, match="cannot be taken back"):
            await session.exec("python3 get.py a")
    await session.close()
    session = await pool.session({"get.py": GET}, limits=LIMITS, socket=path)
    working = asyncio.ensure_future(session.exec("python3 get.py a; sleep 5"))
    await asyncio.sleep(2)
    await kill_jails(before)
    with pytest.raises(SandboxError, match="cannot be taken back"):
        await working
    await session.close()
    late = await pool.session(limits=LIMITS, socket=path)
    waiting = await late.exec("sleep 10", timeout=0.5)
    assert (waiting.status, waiting.suspected) == ("timeout_wall", True)
    assert (await late.exec("echo on")).stdout == "on\n"
    await late.close()
    await pool.close()


async def test_nothing_is_left_of_a_session(
    pool: JailPool, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No folder and no thread, and its jail serves no other session."""
    monkeypatch.setattr("grpo_sandbox.bridge.PREFIX", f"grpo-bridge-{os.getpid()}-")
    for _ in range(2):
        async with reaching(pool, path) as session:
            assert len(folders()) == 1
            await session.exec("python3 get.py a; echo x > file")
    assert folders() == []
    assert "grpo bridge" not in {thread.name for thread in threading.enumerate()}
    async with reaching(pool, None) as session:
        plain = await session.exec("ls; ls /run/bridge; python3 get.py a")
    assert plain.stdout == "get.py\n"
    assert "bridge" in plain.stderr


def folders() -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob(f"grpo-bridge-{os.getpid()}-*"))


async def test_sessions_with_different_sockets_do_not_meet(
    pool: JailPool, path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    class Other(Handler):
        def do_GET(self) -> None:
            self._answer(b"other")

    second = tmp_path_factory.mktemp("s") / "http"
    with listening(second, Other):
        sessions: list[Any] = [
            await pool.session({"get.py": GET}, limits=LIMITS, socket=each)
            for each in (path, second, path)
        ]
        results = await asyncio.gather(*(each.exec("python3 get.py a a") for each in sessions))
        for session in sessions:
            await session.close()
    assert [result.stdout for result in results] == ["/a\n/a\n", "other\nother\n", "/a\n/a\n"]
