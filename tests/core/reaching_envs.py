"""A verifier that tries to reach the process that started its worker; the answer says how."""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpo_core import Environment, Reward, Rollout, Task, TaskKey, Verdict

DATA = Path(__file__).with_name("distributions.py")
"""A file beside this one, as an author's data would be."""
_libc = ctypes.CDLL(None, use_errno=True)
_PTRACE_ATTACH = 16
_MNT_DETACH, _CLONE_NEWNS, _CLONE_NEWUSER = 2, 0x20000, 0x10000000


def pids() -> list[str]:
    return [name for name in os.listdir("/proc") if name.isdigit()]


def read_everywhere(name: str, canary: bytes) -> list[str]:
    """Return the processes whose file of this name in /proc holds the canary."""
    holders = []
    for pid in pids():
        with contextlib.suppress(OSError), open(f"/proc/{pid}/{name}", "rb") as file:
            if canary in file.read() and pid not in (str(os.getpid()), "self"):
                holders.append(pid)
    return holders


def memory_of(pid: int, canary: bytes) -> bool:
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in maps:
            if " rw-p " in line:
                start, end = (int(part, 16) for part in line.split()[0].split("-"))
                memory.seek(start)
                with contextlib.suppress(OSError):
                    if canary in memory.read(min(end - start, 1 << 26)):
                        return True
    return False


def uncover(canary: bytes) -> list[str]:
    """Look below what is mounted at /proc, with all rights that can be had."""
    for flags in (0, _CLONE_NEWUSER | _CLONE_NEWNS):
        if flags:
            _libc.unshare(flags)
        for _ in range(3):
            _libc.umount2(b"/proc", _MNT_DETACH)
        if _libc.mount(b"proc", b"/mnt", b"proc", 0, None) == 0:
            _libc.umount2(b"/mnt", _MNT_DETACH)
    return read_everywhere("environ", canary)


ATTACKS: dict[str, Callable[[int, bytes], Any]] = {
    "environ of all": lambda pid, canary: read_everywhere("environ", canary),
    "environ of threads": lambda pid, canary: [
        task
        for path in Path("/proc").glob("[0-9]*/task/*/environ")
        for task in [str(path)]
        if path.parts[2] != str(os.getpid()) and canary in path.read_bytes()
    ],
    "cmdline of all": lambda pid, canary: read_everywhere("cmdline", canary),
    "environ of a child's view": lambda pid, canary: subprocess.run(
        ["sh", "-c", f"cat /proc/*/environ | grep -ac {canary.decode()}; true"],
        capture_output=True, text=True, check=False,
    ).stdout.strip().replace("0", ""),
    "memory": lambda pid, canary: memory_of(pid, canary),
    "descriptors": lambda pid, canary: os.listdir(f"/proc/{pid}/fd"),
    "root": lambda pid, canary: canary in Path(f"/proc/{pid}/root/proc/{pid}/environ").read_bytes(),
    "kill": lambda pid, canary: os.kill(pid, 0) is None,
    "kill of the parent": lambda pid, canary: os.kill(os.getppid(), signal.SIGKILL),
    "pidfd": lambda pid, canary: os.pidfd_open(pid),
    "ptrace": lambda pid, canary: _libc.ptrace(_PTRACE_ATTACH, pid, None, None) == 0,
    "affinity": lambda pid, canary: os.sched_getaffinity(pid),
    "uncovered": lambda pid, canary: uncover(canary),
    "own descriptors": lambda pid, canary: [
        number
        for number in os.listdir("/proc/self/fd")
        if int(number) > 2
        and not os.readlink(f"/proc/self/fd/{number}").startswith(("pipe:", "/proc", "socket:", "anon"))
    ],
}  # fmt: skip
"""Each returns something true if it has reached what it should not; most raise an OSError."""


class Reaches(Environment[int]):
    timeout_seconds = 20.0

    def task(self, key: TaskKey) -> Task[int]:
        return Task(key, f"question {key.index}", key.index)

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        order, pid, canary = rollout.text.split("|")
        reached: Any
        try:
            if order == "surroundings":
                reached = surroundings()
            else:
                reached = ATTACKS[order](int(pid), ("CANARY-" + canary).encode())
        except (OSError, ValueError) as error:
            return Verdict({"reward": Reward(0.0)}, answer=f"{type(error).__name__}")
        return Verdict({"reward": Reward(float(bool(reached)))}, answer=str(reached))


def surroundings() -> list[Any]:
    """Return what a worker shares with its trainer."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
    return [
        os.geteuid(), os.getegid(), sorted(os.getgroups()), len(DATA.read_bytes()),
        os.readlink("/proc/self/ns/net"), sys.executable, os.access(DATA, os.W_OK),
    ]  # fmt: skip
