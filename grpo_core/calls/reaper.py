"""Run as the parent process of one worker on Linux, and kill what the worker leaves behind.

A process with its own session leaves the worker's process group, and a process whose parent has
ended is no longer the worker's descendant. As a subreaper, the reaper becomes the parent of all of
those, so whatever the worker's code starts stays below it. The reaper ends when the worker ends,
when the trainer requests it (SIGTERM), and when the trainer dies. The kernel reports the trainer's
death by SIGCONT, the only signal that the reaper can wait for and that also wakes it if the worker
has stopped it. The reaper runs none of the worker's code and imports only a few standard modules.

It does not replace a sandbox. Code that runs as the same user can kill the reaper: the worker
dies with it, but processes that have left the worker do not. And processes that replace
themselves faster than they can be killed may survive.

Run as `python reaper.py TRAINER_PID COMMAND...`; an argument PARENT_PID of the command is replaced
by the reaper's process id.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time

PARENT_PID = "{parent_pid}"
"""This argument of a command is replaced by the process id of the parent."""
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_KILL_SECONDS = 4.0
"""The limit for killing and reaping.

The kernel ends a killed process at once, unless it waits for a device.
"""
_PAUSE_SECONDS = 0.005


def main() -> None:
    """Start the worker, wait until it or the trainer has ended, and kill what is left."""
    trainer, command = int(sys.argv[1]), sys.argv[2:]
    awaited_signals = {signal.SIGTERM, signal.SIGCHLD, signal.SIGCONT}
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it were ignored, no status could be read
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, awaited_signals)
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)  # avoids a core dump when it ends by the worker's signal
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    prctl(_PR_SET_PDEATHSIG, signal.SIGCONT, 0, 0, 0)
    if os.getppid() != trainer:
        return
    worker = os.posix_spawn(
        command[0],
        [str(os.getpid()) if argument == PARENT_PID else argument for argument in command],
        os.environ,
        setsid=True,  # a verifier that signals its own group does not reach the reaper
        setsigmask=previous_mask,
        setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
    )
    _drop_pipes()
    statuses: dict[int, int] = {}
    while worker not in statuses and os.getppid() == trainer:
        if signal.sigwait(awaited_signals) == signal.SIGTERM:
            break
        _reap(statuses)
    deadline = time.monotonic() + _KILL_SECONDS
    while _reap(statuses) and time.monotonic() < deadline:
        kill_children(os.getpid())
        signal.sigtimedwait({signal.SIGCHLD}, _PAUSE_SECONDS)
    _end_with(statuses.get(worker, signal.SIGKILL))


def kill_children(parent: int) -> None:
    """Kill the children of a process; if it is a subreaper, it becomes the parent of theirs."""
    for child in children_of(parent):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(child, signal.SIGKILL)


def children_of(parent: int) -> list[int]:
    """Return the ids of the children of a process's first thread."""
    with contextlib.suppress(OSError), open(f"/proc/{parent}/task/{parent}/children", "rb") as file:
        return [int(child) for child in file.read().split()]
    children = []  # the kernel was built without the file above
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{entry}/stat", "rb") as file:
            if int(file.read().rpartition(b")")[2].split()[1]) == parent:
                children.append(int(entry))
    return children


def _reap(statuses: dict[int, int]) -> bool:
    """Add the wait statuses of the children that have ended; return whether any child is left."""
    try:
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            statuses[ended[0]] = ended[1]
    except ChildProcessError:
        return False
    return True


def _drop_pipes() -> None:
    """Close the pipes here, so that the trainer sees their end when the worker ends."""
    null_device = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null_device, descriptor)
    os.close(null_device)


def _end_with(status: int) -> None:
    """End with the exit status of the worker, or by the signal that killed it."""
    if os.WIFSIGNALED(status):
        signal_number = os.WTERMSIG(status)
        with contextlib.suppress(OSError, ValueError):  # SIGKILL has no handler
            signal.signal(signal_number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal_number})
        os.kill(os.getpid(), signal_number)
    os._exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
