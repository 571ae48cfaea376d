"""Check whether the sessions of a sandbox reach one socket of this machine, and nothing else.

A session is opened with a Unix socket. What listens there, beside it and at a port of this machine
is made here, and tells what was reached.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socketserver
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo_core.calls.isolation import reason
from grpo_core.kit.hostile_sessions import FREE
from grpo_core.kit.result import CheckResult
from grpo_core.protocol.errors import ConfigError, GrpoError
from grpo_core.protocol.sandbox import SESSION_PORT, CommandResult, Limits, Sandbox, Session

LIMITS = Limits(cpu_seconds=4, wall_seconds=8, memory_mb=256, output_bytes=10_000, processes=12)
NAME = "session socket"
"""How the names of the checks begin."""
ANSWER, OTHER = "grpo", "other"
"""What the socket answers, and what everything else does that must not be reached."""
_MOST_MEMORY_MB = 300
"""How much the memory of this process may grow while commands send and receive without end."""
_SETTLE_SECONDS = 0.2
_LEAVE_SECONDS = 3.0
"""How soon connections end after the command that made them."""
CLIENT = f"""
import socket
def ask(address, word="hello"):
    kind = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(kind) as connection:
        connection.settimeout(3)
        connection.connect(address)
        connection.sendall(word.encode() + b"\\n")
        return connection.recv(100).decode().strip()
HERE = ("127.0.0.1", {SESSION_PORT})
def free(work, *arguments):
    try: found = work(*arguments)
    except Exception: return
    if found != "{ANSWER}": print("{FREE}", arguments)
"""
"""The beginning of each program; `free` tells of what works and should not."""
HONEST = f"{CLIENT}\nprint(ask(HERE))"


@dataclass(frozen=True, slots=True)
class Attack:
    """A program that tries to reach more than the socket, or to take it from others."""

    name: str
    source: str
    """What follows `CLIENT`; PORT and BESIDE stand for what must not be reached."""


ATTACKS = (
    Attack(
        "other sockets",
        """
import os
paths = [BESIDE, "/var/run/docker.sock", "/run/docker.sock", "/run/dbus/system_bus_socket"]
for folder, _, names in os.walk("/"):
    if not folder.startswith(("/proc", "/sys")):
        paths += [os.path.join(folder, name) for name in names]
for path in paths[:20000]: free(ask, path)
for name in ("grpo", "/tmp/.X11-unix/X0", "/run/systemd/private"): free(ask, "\\0" + name)
""",
    ),
    Attack(
        "other addresses",
        """
for host in ("1.1.1.1", "10.0.0.1", "172.17.0.1", "192.168.0.1", "169.254.169.254"):
    for port in (53, 80): free(ask, (host, port))
""",
    ),
    Attack(
        "loopback of this machine",
        """
for host in ("127.0.0.1", "0.0.0.0", "127.1.2.3", "localhost"): free(ask, (host, PORT))
""",
    ),
    Attack(
        "names",
        """
free(socket.getaddrinfo, "example.com", 80)
free(socket.gethostbyname, "example.com")
""",
    ),
    Attack(
        "other protocols",
        """
for family in (2, 10, 16, 17, 40, 29, 31):
    for kind in (1, 2, 3, 5, 10):
        if (family, kind) != (2, 1): free(socket.socket, family, kind)
for protocol in (1, 33, 58, 132, 262): free(socket.socket, 2, 1, protocol)
""",
    ),
    Attack(
        "many connections",
        """
import os, time
for _ in range(8):
    if os.fork() == 0:
        kept = []
        try:
            while True:
                connection = socket.socket()
                connection.setblocking(False)
                kept.append(connection)
                connection.connect_ex(HERE)
        except OSError: time.sleep(2)
        os._exit(0)
time.sleep(2)
""",
    ),
    Attack(
        "huge streams",
        """
import os, time
def stream(word, work):
    if os.fork() == 0:
        connection = socket.create_connection(HERE, 5)
        connection.sendall(word)
        end = time.time() + 3
        while time.time() < end: work(connection)
        os._exit(0)
for _ in range(3):
    stream(b"swallow\\n", lambda connection: connection.sendall(b"x" * 1000000))
    stream(b"stuck\\n", lambda connection: connection.send(b"x" * 1000000))
    stream(b"endless\\n", lambda connection: connection.recv(1000000))
stream(b"endless\\n", lambda connection: time.sleep(3))
time.sleep(3.5)
""",
    ),
    Attack(
        "connections that stay",
        """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        kept = [socket.create_connection(HERE, 5) for _ in range(20)]
        for connection in kept: connection.sendall(b"stuck\\n" + b"x" * 1000000)
    time.sleep(100)
time.sleep(1)
""",
    ),
)


class Listening:
    """Listen at the socket, which answers a line, and at two places that no program may reach.

    Attributes:
        path: the path of the socket.
        beside: that of another one in the same folder.
        port: a port of this machine's loopback.
    """

    def __init__(self, folder: Path) -> None:
        self.path, self.beside = folder / "one", folder / "other"
        self._open = 0
        self._lock = threading.Lock()
        other = _TcpServer(("127.0.0.1", 0), _handler(self, OTHER))
        self.port: int = other.server_address[1]
        self._servers: list[socketserver.BaseServer] = [
            _UnixServer(str(self.path), _handler(self, ANSWER)),
            _UnixServer(str(self.beside), _handler(self, OTHER)),
            other,
        ]
        for server in self._servers:
            threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()

    @property
    def connections(self) -> int:
        """Return how many connections to the socket are open."""
        with self._lock:
            return self._open

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Count a connection in the block."""
        with self._lock:
            self._open += 1
        try:
            yield
        finally:
            with self._lock:
                self._open -= 1

    def close(self) -> None:
        """Listen no longer."""
        for server in self._servers:
            server.shutdown()
            server.server_close()


class _UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 128


class _TcpServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True


def _handler(listening: Listening, answer: str) -> type[socketserver.BaseRequestHandler]:
    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            with listening.counted(), contextlib.suppress(OSError):
                match self.rfile.readline(100):
                    case b"endless\n":
                        while True:
                            self.wfile.write(b"x" * 100_000)
                    case b"swallow\n":
                        while self.rfile.read(100_000):
                            pass
                    case b"stuck\n":
                        while self.connection.send(b"."):
                            time.sleep(0.2)
                    case _:
                        self.wfile.write(f"{answer}\n".encode())

    return Handler


async def check_session_sockets(sandbox: Sandbox) -> list[CheckResult]:
    """Return the result of each check; "not_checked" for sessions that take no socket."""
    with tempfile.TemporaryDirectory() as folder:
        listening = Listening(Path(folder))
        try:
            return await _check(sandbox, listening)
        finally:
            listening.close()


async def _check(sandbox: Sandbox, listening: Listening) -> list[CheckResult]:
    try:
        neighbour = await sandbox.session(limits=LIMITS, socket=listening.path)
    except (AttributeError, ConfigError, TypeError) as error:
        return [CheckResult(NAME, "not_checked", f"its sessions take none: {reason(error)}")]
    except GrpoError:
        raise
    except Exception as error:  # noqa: BLE001 - a plugin's sandbox may raise anything
        return [CheckResult(NAME, "invalid", f"session() raised {reason(error)}")]
    try:
        if problem := await _unanswered(neighbour):
            return [CheckResult(NAME, "invalid", f"it cannot be reached: {problem}")]
        results = [CheckResult(NAME, "valid", f"programs reach it at port {SESSION_PORT}")]
        for attack in ATTACKS:
            results.append(await _made(sandbox, attack, listening, neighbour))
        return [*results, await _check_without(sandbox)]
    finally:
        await neighbour.close()


async def _made(
    sandbox: Sandbox, attack: Attack, listening: Listening, neighbour: Session
) -> CheckResult:
    """Return the result of an attack; a sandbox that raises has failed it."""
    name = f"{NAME}: {attack.name}"
    try:
        problem, summary = await _play(sandbox, attack, listening, neighbour)
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001 - a plugin's sandbox may raise anything
        return CheckResult(
            name, "invalid", f"the session raised {reason(error)}; programs may not do that"
        )
    return CheckResult(name, "invalid" if problem else "valid", problem or summary)


async def _play(
    sandbox: Sandbox, attack: Attack, listening: Listening, neighbour: Session
) -> tuple[str, str]:
    """Run an attack; return what is wrong, or "", and a summary."""
    source = attack.source.replace("BESIDE", repr(str(listening.beside)))
    source = CLIENT + source.replace("PORT", str(listening.port))
    kept, memory = listening.connections, _memory_mb()
    session = await sandbox.session({"attack.py": source}, limits=LIMITS, socket=listening.path)
    try:
        result = await session.exec("python3 attack.py")
        summary = _summary(result)
        grown = _memory_mb() - memory
        if FREE in result.stdout.split():
            return f"it reached more than the socket: {result.stdout[:200].strip()}", summary
        if grown > _MOST_MEMORY_MB:
            return f"the memory of this process grew by {grown:.0f} MB meanwhile", summary
        if left := await asyncio.to_thread(_left, listening, kept):
            return f"{left} connections stay open after the command that made them", summary
        for place, each in (("in the session", session), ("beside it", neighbour)):
            if problem := await _unanswered(each):
                return f"afterwards a program {place} does not reach the socket: {problem}", summary
        return "", summary
    finally:
        await session.close()


def _left(listening: Listening, kept: int) -> int:
    """Return how many connections a command has left open, once they had time to end."""
    end = time.monotonic() + _LEAVE_SECONDS
    time.sleep(_SETTLE_SECONDS)  # the newest may not have been accepted yet
    while (left := listening.connections - kept) > 0 and time.monotonic() < end:
        time.sleep(0.05)
    return max(0, left)


async def _check_without(sandbox: Sandbox) -> CheckResult:
    """Check that a session without a socket reaches none, also in a jail that had one before."""
    session = await sandbox.session(limits=LIMITS)
    try:
        result = await session.exec(["python3", "-c", HONEST])
    finally:
        await session.close()
    name = f"{NAME}: none asked for"
    if result.status == "ok" and result.exit_code != 0 and ANSWER not in result.stdout.split():
        return CheckResult(name, "valid", _summary(result))
    return CheckResult(name, "invalid", f"a session without a socket has one: {_summary(result)}")


async def _unanswered(session: Session) -> str:
    """Return how an honest program ended that got no answer from the socket; "" if it got one."""
    result = await session.exec(["python3", "-c", HONEST])
    answered = (result.status, result.stdout.strip()) == ("ok", ANSWER)
    return "" if answered else _summary(result)


def _summary(result: CommandResult) -> str:
    last = result.stderr.strip().splitlines()[-1:]
    parts: Sequence[str] = (result.status, result.stdout[:60], *last, result.error[:60])
    return " ".join(" ".join(parts).split())[:200]


def _memory_mb() -> float:
    """Return the memory of this process; 0 where the system does not say."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return 0.0
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
