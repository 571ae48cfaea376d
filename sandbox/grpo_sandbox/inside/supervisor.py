"""The supervisor: the trusted process inside a jail.

It forks a child for each call, ends the child with all processes it started, and reports how it
ended. It is process 1 of its pid namespace: processes that a program leaves behind become its
children, and when it ends, the kernel ends the rest. It ends when its stdin closes. It never reads
a program, an input or an output (see `frames` and `watch`), because every later call is forked from
its memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

from grpo_sandbox.inside.bridge import BridgeControl, split_off_supervisor, start_forwarder
from grpo_sandbox.inside.call import run_call
from grpo_sandbox.inside.commands import read_file, run_command, write_files
from grpo_sandbox.inside.filter import PRETENDED, SystemCallFilter
from grpo_sandbox.inside.frames import REPLIES, REQUESTS, pack, read_head, write
from grpo_sandbox.inside.places import KILL_SECONDS, OwnNamespaces, OwnUid
from grpo_sandbox.inside.watch import STARTED, STREAMS, ChildWatch, OutputMemory, tick_seconds

COMMON = (
    "bisect collections copy dataclasses datetime decimal enum fractions functools heapq itertools "
    "math operator random re statistics string types typing"
)
"""Modules that are imported once, before any fork, so that programs import them without delay."""
CHILDREN = {"call": run_call, "exec": run_command, "write": write_files, "read": read_file}
"""What a child does, by the kind of request; "begin" and "end" of a session need no child."""
_PR_SET_DUMPABLE = 4
_CGROUP_V2 = "/sys/fs/cgroup/memory.events"
_CGROUP_V1 = "/sys/fs/cgroup/memory/memory."
_NEARLY_ALL = 0.98
_SHELL_SAYS = 128
"""A shell whose command was ended by a signal exits with this and the number of the signal."""


def main(settings: dict[str, Any]) -> None:
    """Serve calls until stdin closes.

    Args:
        settings: `uid`, under which each call runs (null: it gets nested namespaces instead);
            `folder`, the only one in which a call may write, with `folder_mb` and `inodes`;
            `session`, whether the jail serves sessions and not calls;
            `bridge`, where programs reach a socket outside (see `bridge`), or null;
            `forbidden`, names of packages that must not be visible in the jail.
    """
    os.dup2(0, REQUESTS, inheritable=False)
    os.dup2(1, REPLIES, inheritable=False)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    for name in [] if settings["session"] else COMMON.split():
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    uid, bridge = settings["uid"], settings["bridge"]
    control: BridgeControl | None = None
    if bridge is not None:
        control = split_off_supervisor(bridge) if uid is None else start_forwarder(bridge, uid + 1)
    place = OwnNamespaces(settings) if uid is None else OwnUid(settings)
    jail = _Jail(place, PRETENDED if settings["session"] else (), control)
    visible = visible_packages(settings["forbidden"])
    write([pack({"ready": True, "python": sys.version.split()[0], "visible": visible})])
    gc.collect()
    gc.freeze()
    gc.disable()  # each child switches it on again
    while (head := read_head()) is not None:
        jail.serve(head)
    os._exit(0)


class _Jail:
    """The state that the supervisor keeps from call to call."""

    def __init__(
        self,
        place: OwnUid | OwnNamespaces,
        pretended: tuple[str, ...],
        control: BridgeControl | None,
    ) -> None:
        self._place, self._control = place, control
        self._capture = OutputMemory()
        needed = place.system_calls
        SystemCallFilter.of_jail(needed, pretended, tcp=control is not None).apply()
        self._system_calls = SystemCallFilter.of_call(needed) if needed else None
        self._memory = _MemoryEvents()

    def serve(self, head: dict[str, Any]) -> None:
        """Serve one request and write its reply."""
        kind = head["kind"]
        if kind not in CHILDREN:
            self._serve_bracket(kind)
            return
        limits = head["limits"]
        self._capture.prepare(
            {
                "result": limits["result_bytes"] + len(STARTED),
                "stdout": limits["output_bytes"],
                "stderr": limits["output_bytes"],
            }
        )
        watch, wall = self._fork_and_watch(head)
        if not self._capture.started():
            self._give_up()
        cpu = watch.usage.ru_utime + watch.usage.ru_stime
        status = self._status(watch, cpu, limits, kind)
        clean = _succeeds(self._place.clean if kind == "call" else self._place.settle)
        if self._control is not None and kind == "exec":
            clean = self._control.drop_all() and clean
        ran_out = self._memory.ran_out()
        numbers = (watch.status or 0, cpu, wall)
        write(self._capture.reply(status, *numbers, clean=clean, ran_out=ran_out))
        self._capture.forget()

    def _serve_bracket(self, kind: str) -> None:
        """Begin or end a session."""
        self._capture.prepare(dict.fromkeys(STREAMS, 0))
        work = {"begin": self._place.begin_session, "end": self._place.end_session}[kind]
        write(self._capture.reply("ended", clean=_succeeds(work)))

    def _give_up(self) -> NoReturn:
        """End the jail, which is broken: the child never started the program."""
        with contextlib.suppress(OSError):
            os.write(2, self._capture.parts()[STREAMS.index("stderr")])
        os._exit(1)

    def _fork_and_watch(self, head: dict[str, Any]) -> tuple[ChildWatch, float]:
        """Fork the child and follow it to its end.

        Returns:
            The watch, and the seconds for which the child ran.
        """
        pipes = {name: os.pipe() for name in STREAMS}
        self._memory.mark()
        started = time.monotonic()
        pid = os.fork()
        if pid == 0:
            try:
                writers = {name: writer for name, (_, writer) in pipes.items()}
                CHILDREN[head["kind"]](head, self._place, self._system_calls, writers)
            except OSError as error:
                os.write(2, f"a call cannot be started: {error}".encode())
            finally:
                os._exit(70)
        for _, writer in pipes.values():
            os.close(writer)
        watch = ChildWatch(
            pid, {name: reader for name, (reader, _) in pipes.items()}, self._capture
        )
        seconds = head["limits"]["wall_seconds"]
        watch.until(started + seconds, tick_seconds(seconds))
        wall = time.monotonic() - started - watch.stalled_seconds
        if watch.status is None:
            self._place.kill()
            if not watch.reap_killed(KILL_SECONDS):
                os._exit(1)  # the end of process 1 ends even a process that cannot be killed here
        for reader, _ in pipes.values():
            os.close(reader)
        return watch, wall

    def _status(  # noqa: C901 - causes in order
        self, watch: ChildWatch, cpu: float, limits: dict[str, Any], kind: str
    ) -> str:
        """Return how the child ended; a claim ("claimed") is read outside."""
        killed = os.WIFSIGNALED(watch.status or 0)
        if watch.over:
            return "bad_result" if watch.over == "result" else "output_limit"
        if killed and os.WTERMSIG(watch.status or 0) == signal.SIGXCPU:
            return "timeout_cpu"
        if cpu >= 0.95 * limits["cpu_seconds"] and (watch.late or killed):
            return "timeout_cpu"  # it ignores the signal, or has several processes
        said = os.waitstatus_to_exitcode(watch.status or 0) - _SHELL_SAYS if kind == "exec" else 0
        if said == signal.SIGXCPU and cpu >= 0.5 * limits["cpu_seconds"]:  # by another clock
            return "timeout_cpu"
        if cpu > limits["cpu_seconds"]:  # the kernel's limit has whole seconds
            return "timeout_cpu"
        if watch.late:
            return "timeout_wall"
        if (killed or said == signal.SIGKILL) and self._memory.ran_out():
            return "oom"
        if killed:
            return "signal"
        has_result = self._capture.size["result"] > len(STARTED)
        if kind == "exec":
            return "no_result" if has_result else "ended"  # a result says why it never started
        if kind != "call":
            return "ended"
        return "claimed" if has_result else "no_result"


def _succeeds(work: Callable[[], bool]) -> bool:
    try:
        return work()
    except Exception:  # noqa: BLE001 - whatever the program left behind, the jail is replaced
        return False


class _MemoryEvents:
    """Detects whether the kernel killed a process because this container's own memory ran out.

    The number of kills alone would include those of a machine that is short of memory.
    """

    def __init__(self) -> None:
        self._kills = _open(_CGROUP_V2) or _open(f"{_CGROUP_V1}oom_control")
        self._version_2 = os.path.exists(_CGROUP_V2)
        self._highest, self._limit = (
            _open(f"{_CGROUP_V1}max_usage_in_bytes"),
            _open(f"{_CGROUP_V1}limit_in_bytes"),
        )
        self._before = (0, 0)
        self.mark()

    def mark(self) -> None:
        """Remember the current counts."""
        self._before = self._counts()

    def ran_out(self) -> bool:
        """Return whether memory ran out since `mark`; False without the kernel's files."""
        (kills, limit), (kills_before, limit_before) = self._counts(), self._before
        if kills <= kills_before:
            return False
        if self._version_2:
            return limit > limit_before
        return _read_number(self._highest) >= _NEARLY_ALL * _read_number(self._limit)

    def _counts(self) -> tuple[int, int]:
        """Return the number of kills, and how often there was no memory left below the limit."""
        return _read_number(self._kills, "oom_kill"), _read_number(
            self._kills, "oom"
        ) if self._version_2 else 0


def _open(path: str) -> int | None:
    try:
        return os.open(path, os.O_RDONLY)
    except OSError:
        return None


def _read_number(descriptor: int | None, key: str = "") -> int:
    """Return the number in the line that begins with `key`, or the only number without a key."""
    if descriptor is None:
        return 0
    for line in os.pread(descriptor, 4096, 0).decode().splitlines():
        *name, number = line.split()
        if name == ([key] if key else []):
            return int(number)
    return 0


def visible_packages(names: list[str]) -> list[str]:
    """Return the paths of packages or distributions of these names anywhere in this jail."""
    forbidden = set(names)
    paths: list[str] = []
    for folder, folders, files in os.walk("/") if forbidden else ():
        if folder == "/":
            folders[:] = [name for name in folders if name not in ("proc", "sys", "dev")]
        if "__init__.py" in files:  # packages inside this one have other names
            folders.clear()
            continue
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            stem = name.partition(".")[0].partition("-")[0]
            if stem in forbidden and _package_name(path) in forbidden:
                paths.append(path)
    return paths


def _package_name(path: str) -> str:
    """Return the name of the package, module or distribution at `path`, or "" if there is none."""
    name = os.path.basename(path)
    if name.endswith((".dist-info", ".egg-info", ".egg", ".whl", ".zip")):
        return name.partition("-")[0]
    if name.endswith((".py", ".pyc", ".so")):
        return name.partition(".")[0]
    try:
        inside = os.listdir(path)
    except OSError:
        return ""
    return name if any(entry.endswith((".py", ".pyc", ".so")) for entry in inside) else ""
