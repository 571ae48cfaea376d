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
from pathlib import Path

from grpo_core import SESSION_PORT, CommandResult, ConfigError, GrpoError, Limits, Sandbox, Session
from grpo_core.api.calls import reason
from grpo_core.api.verify import CheckResult
from grpo_kit.sandboxes.hostile_sessions import FREE
from grpo_kit.sandboxes.socket_attacks import ANSWER, ATTACKS, CLIENT, HONEST, NAME, OTHER, Attack

LIMITS = Limits(cpu_seconds=4, wall_seconds=8, memory_mb=256, output_bytes=10_000, processes=12)
_MOST_MEMORY_MB = 300
"""How much the memory of this process may grow while commands send and receive without end."""
_SETTLE_SECONDS = 0.2
_LEAVE_SECONDS = 3.0
"""How soon connections end after the command that made them."""


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
