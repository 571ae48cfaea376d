"""The one process inside a jail that is ours: it forks a child for each call, ends it with all it started, and says how it ended.

Standard library only, and one file: its text is handed to the jail's own Python (`python3 -I -S -c TEXT SETTINGS`), so the jail needs
nothing of ours on its disk. It is process 1 of its pid namespace: whatever a program leaves behind becomes its child, and when it goes,
the kernel ends the rest. It reads requests from its stdin and exits when that closes.

A child never learns more than one input, and has no say in the verdict: it may only claim a value, which the parent outside judges.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import fcntl
import importlib
import json
import os
import resource
import select
import shutil
import signal
import stat
import sys
import time
from typing import Any, NoReturn

HEADER_BYTES = 8
MAX_FRAME_BYTES = 64_000_000
REQUESTS, REPLIES, HIGH = 30, 31, 32
"""Where our own streams lie; a child keeps nothing above RESULT."""
RESULT = 3
"""The descriptor on which a child claims its value."""
COMMON = (
    "bisect collections copy dataclasses datetime decimal enum fractions functools heapq itertools math operator random re statistics "
    "string types typing"
)
"""Imported once, before any fork, so that a program that imports them pays nothing."""
MAX_DEPTH = 64
MAX_ERROR = 500
MAX_DIGITS = 4300
SAFE_INT = 1 << 53
INFINITY = float("inf")
TAGS: dict[type, str] = {tuple: "t", set: "s", frozenset: "z"}
KINDS: dict[str, Any] = {tag: kind for kind, tag in TAGS.items()}
_CLONE_NEWUSER, _CLONE_NEWPID, _CLONE_NEWIPC = 0x10000000, 0x20000000, 0x08000000
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4
_CLEAN_SECONDS = 5.0
_OOM_KILLS = (("/sys/fs/cgroup/memory.events", "oom_kill "), ("/sys/fs/cgroup/memory/memory.oom_control", "oom_kill "))


def main() -> None:
    """Serve until stdin closes. The first argument is JSON: uid, which each call becomes (null: it gets nested namespaces instead), and
    folder, the one place where a call may write."""
    settings = json.loads(sys.argv[1])
    os.dup2(0, REQUESTS, inheritable=False)
    os.dup2(1, REPLIES, inheritable=False)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    for name in COMMON.split():
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    _write_frame({"ready": True, "python": sys.version.split()[0]})
    while (request := _read_frame()) is not None:
        reply = _call(request, settings)
        _write_frame({**reply, "clean": _clean(settings)})
    os._exit(0)


# Frames: 8 bytes of length, then JSON


def _write_frame(message: dict[str, Any]) -> None:
    body = json.dumps(message).encode()
    rest = len(body).to_bytes(HEADER_BYTES, "big") + body
    while rest:
        rest = rest[os.write(REPLIES, rest) :]


def _read_frame() -> dict[str, Any] | None:
    """The next request; None at the end of the stream."""
    header = _read_exactly(HEADER_BYTES)
    size = int.from_bytes(header, "big")
    body = _read_exactly(size) if header and size <= MAX_FRAME_BYTES else b""
    request: dict[str, Any] | None = json.loads(body) if body else None
    return request


def _read_exactly(size: int) -> bytes:
    """Empty at the end of the stream."""
    parts = []
    while size > 0:
        part = os.read(REQUESTS, min(size, 1 << 20))
        if not part:
            return b""
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


# One call, seen from outside


class _Watch:
    """Reads what a child writes until it ends, its time is up, or it says too much."""

    def __init__(self, pid: int, readers: dict[str, int], caps: dict[str, int]) -> None:
        self.pid, self.readers, self.caps = pid, readers, caps
        self.got = dict.fromkeys(readers, b"")
        self.over: str | None = None
        self.late = False
        self.status: int | None = None
        self.usage: Any = None
        self._pidfd = os.pidfd_open(pid)
        self._poller = select.poll()
        self._poller.register(self._pidfd, select.POLLIN)
        for reader in readers.values():
            os.set_blocking(reader, False)
            self._poller.register(reader, select.POLLIN)

    def until(self, deadline: float) -> None:
        while self.status is None and self.over is None and not self.late:
            left = deadline - time.monotonic()
            ready = [descriptor for descriptor, _ in self._poller.poll(max(0.0, left) * 1000)] if left > 0 else []
            self.late = not ready
            if self._pidfd in ready:
                self.reap()
            for name, reader in self.readers.items():
                if reader in ready or self.status is not None:
                    self._drain(name, reader)
        os.close(self._pidfd)

    def reap(self) -> None:
        _, self.status, self.usage = os.wait4(self.pid, 0)

    def _drain(self, name: str, reader: int) -> None:
        """Take what is there, up to the cap."""
        while self.over is None:
            try:
                chunk = os.read(reader, 65_536)
            except BlockingIOError:
                return
            if not chunk:
                with contextlib.suppress(KeyError):
                    self._poller.unregister(reader)
                return
            self.got[name] += chunk
            if len(self.got[name]) > self.caps[name]:
                self.got[name], self.over = self.got[name][: self.caps[name]], name


def _call(request: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    limits = request["limits"]
    pipes = {name: os.pipe() for name in ("result", "stdout", "stderr")}
    kills, started = _oom_kills(), time.monotonic()
    pid = os.fork()
    if pid == 0:
        try:
            _child(request, settings, pipes)
        finally:
            os._exit(70)
    for _, writer in pipes.values():
        os.close(writer)
    caps = {"result": limits["result_bytes"], "stdout": limits["output_bytes"], "stderr": limits["output_bytes"]}
    watch = _Watch(pid, {name: reader for name, (reader, _) in pipes.items()}, caps)
    watch.until(started + limits["wall_seconds"])
    wall = time.monotonic() - started
    if watch.status is None:
        _kill(settings)
        watch.reap()
    for reader, _ in pipes.values():
        os.close(reader)
    said = {name: content.decode("utf-8", "replace") for name, content in watch.got.items()}
    cpu = watch.usage.ru_utime + watch.usage.ru_stime
    status = _status(watch, cpu, limits, memory_ran_out=_oom_kills() > kills)
    return {"status": status, **said, "exit": watch.status, "cpu_seconds": cpu, "wall_seconds": wall}


def _status(watch: _Watch, cpu: float, limits: dict[str, Any], *, memory_ran_out: bool) -> str:
    """How the call ended. What a program claims itself ("claimed") is read by the parent outside."""
    killed = os.WIFSIGNALED(watch.status or 0)
    if watch.over:
        return "bad_result" if watch.over == "result" else "output_limit"
    if killed and os.WTERMSIG(watch.status or 0) == signal.SIGXCPU:
        return "timeout_cpu"
    if cpu >= 0.95 * limits["cpu_seconds"] and (watch.late or killed):  # one that ignores the signal, or several processes together
        return "timeout_cpu"
    if cpu > limits["cpu_seconds"]:  # the kernel's limit has whole seconds
        return "timeout_cpu"
    if watch.late:
        return "timeout_wall"
    if killed:
        return "oom" if memory_ran_out else "signal"
    return "claimed" if watch.got["result"] else "no_result"


def _oom_kills() -> int:
    """How many processes of this container the kernel has ended because memory ran out; 0 where no file tells."""
    for path, key in _OOM_KILLS:
        with contextlib.suppress(OSError), open(path) as file:
            return sum(int(line.split()[1]) for line in file if line.startswith(key))
    return 0


def _kill(settings: dict[str, Any]) -> None:
    """End every process but this one. Where calls have a uid of their own, only a process of that uid may signal them."""
    with contextlib.suppress(ProcessLookupError):
        if settings["uid"] is None:
            os.kill(-1, signal.SIGKILL)
        else:
            _as_call(settings, lambda: os.kill(-1, signal.SIGKILL))


def _clean(settings: dict[str, Any]) -> bool:
    """End and reap what the call left behind and empty its folder; False if that cannot be done: then the jail has to go."""
    deadline = time.monotonic() + _CLEAN_SECONDS
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < deadline:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                _kill(settings)
                time.sleep(0.001)
        return False
    folder = settings["folder"]
    if os.listdir(folder):
        _as_call(settings, lambda: _wipe(folder))
    return not os.listdir(folder)


def _as_call(settings: dict[str, Any], work: Any) -> None:
    """Do `work` in a process that may do what a call may."""
    helper = os.fork()
    if helper == 0:
        try:
            if settings["uid"] is not None:
                _become(settings["uid"])
            work()
        finally:
            os._exit(0)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(helper, 0)


def _wipe(folder: str) -> None:
    """What cannot be removed stays, and the jail is replaced for it."""
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            with contextlib.suppress(OSError):
                os.chmod(entry.path, stat.S_IRWXU)
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                os.unlink(entry.path)


# The same call, inside the child


def _child(request: dict[str, Any], settings: dict[str, Any], pipes: dict[str, tuple[int, int]]) -> None:
    os.setsid()
    sources = (os.open(os.devnull, os.O_RDONLY), pipes["stdout"][1], pipes["stderr"][1], pipes["result"][1])
    for place, moved in enumerate([fcntl.fcntl(descriptor, fcntl.F_DUPFD, HIGH) for descriptor in sources]):
        os.dup2(moved, place)
    os.closerange(RESULT + 1, HIGH + 32)
    _limit(request["limits"])
    if settings["uid"] is None:
        _nest()
    else:
        _become(settings["uid"])
    os.chdir(settings["folder"])
    _run(request["source"], request["entry"], request["input"], request["limits"]["result_bytes"])


def _limit(limits: dict[str, Any]) -> None:
    seconds = max(1, round(limits["cpu_seconds"] + 0.499))  # whole ones, rounded up
    # At the soft limit comes SIGXCPU, by which it is told from other ends; whoever ignores that is killed a second later.
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    for name, most in (
        (resource.RLIMIT_AS, limits["memory_mb"] << 20),
        (resource.RLIMIT_FSIZE, limits["file_mb"] << 20),
        (resource.RLIMIT_NPROC, limits["processes"]),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
    ):
        resource.setrlimit(name, (most, most))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # memory that runs out takes the program, not the supervisor


def _become(uid: int) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def _nest() -> None:
    """A user, pid and ipc namespace of its own: without a second uid, this is what hides the supervisor and the neighbours.

    Only children are in the new pid namespace. The first does nothing but be its process 1, which signals do not reach; the caller goes
    on as the second, and the process that was waits, ends the namespace with its process 1, and ends as the second did.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWPID | _CLONE_NEWIPC) != 0:
        raise OSError(ctypes.get_errno(), "this system gives no nested namespaces")
    first = os.fork()
    if first == 0:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.closerange(0, RESULT + 1)
        while True:
            signal.pause()
    pid = os.fork()
    if pid == 0:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.setsid()
        return
    os.closerange(0, RESULT + 1)
    _, status = os.waitpid(pid, 0)
    os.kill(first, signal.SIGKILL)
    os.waitpid(first, 0)
    if os.WIFSIGNALED(status):
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))


def _run(source: str, entry: str, arguments: list[Any], cap: int) -> NoReturn:
    """Run the program and claim its value. What the program patches, it patches for itself."""
    claim: dict[str, Any]
    try:
        namespace: dict[str, Any] = {"__name__": "program", "__builtins__": builtins}
        exec(compile(source, "<program>", "exec", dont_inherit=True), namespace)
        claim = {"ok": encode(namespace[entry](*map(decode, arguments)))}
    except MemoryError:
        claim = {"oom": ""}
    except Unsayable as error:
        claim = {"bad": error.args[0]}
    except BaseException as error:  # noqa: BLE001 - also SystemExit: a program that leaves has claimed nothing
        claim = {"error": _describe(error)}
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    text = json.dumps(claim).encode()
    if len(text) > cap:
        text = json.dumps({"bad": f"the value is larger than {cap:,} bytes"}).encode()
    while text:
        text = text[os.write(RESULT, text) :]
    os._exit(0)


def _describe(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:MAX_ERROR]
    except BaseException:  # noqa: BLE001 - its __str__ is the program's
        return "an exception that cannot be described"


# Values as JSON, with tags for what JSON lacks. The parent uses the same two functions.


class Unsayable(Exception):
    """A value that no claim can hold, or a claim that holds no value."""


def encode(value: Any, depth: int = MAX_DEPTH) -> Any:
    """Plain values of exact types only, so that no object of a program's own class gets out; raises Unsayable for anything else."""
    if depth == 0:
        raise Unsayable("the value is nested too deeply")
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if kind is int:
        return value if -SAFE_INT < value < SAFE_INT else {"i": _digits(value)}
    if kind is float:
        return value if -INFINITY < value < INFINITY else {"f": repr(value)}
    if kind is list:
        return [encode(item, depth - 1) for item in value]
    if kind in TAGS:
        return {TAGS[kind]: [encode(item, depth - 1) for item in value]}
    if kind is dict:
        return {"d": [[encode(key, depth - 1), encode(item, depth - 1)] for key, item in value.items()]}
    if kind is bytes:
        return {"b": value.hex()}
    raise Unsayable(f"a {kind.__name__} is no plain value")


def decode(data: Any, depth: int = MAX_DEPTH) -> Any:
    """What was given to `encode`. data: parsed JSON that anybody may have written; raises Unsayable if `encode` gives nothing like it."""
    if depth == 0:
        raise Unsayable("the claim is nested too deeply")
    if isinstance(data, list):
        return [decode(item, depth - 1) for item in data]
    if not isinstance(data, dict):
        return data
    try:
        ((tag, body),) = data.items()
        if tag in ("i", "f"):
            return _number(tag, body)
        if tag == "b":
            return bytes.fromhex(body)
        if tag == "d":
            return {decode(key, depth - 1): decode(item, depth - 1) for key, item in body}
        return KINDS[tag](decode(item, depth - 1) for item in body)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Unsayable(f"the claim is no value: {error}"[:MAX_ERROR]) from None


def _number(tag: str, text: Any) -> int | float:
    if not isinstance(text, str) or len(text) > MAX_DIGITS:
        raise ValueError("a number is no text, or too long")
    return int(text) if tag == "i" else float(text)


def _digits(value: int) -> str:
    try:
        return str(value)
    except ValueError:
        raise Unsayable("the number has too many digits") from None


if __name__ == "__main__":
    main()
