"""The parent of one worker on Linux: ends all that the worker started, when either has died.

A process with a session of its own leaves the worker's process group, and one whose parent has
ended is no longer its descendant. As a subreaper the reaper becomes the parent of all of those,
so whatever the worker's code starts stays below it. The reaper ends when the worker ends, when
the trainer asks for it (SIGTERM), and when the trainer dies. Of that the kernel tells it by
SIGCONT, the one signal that it can wait for and that also wakes it where the worker has stopped
it. It runs none of the worker's code and imports only a few standard modules.

It does not stand in for a sandbox. Code that runs as the same user can kill the reaper: the
worker dies with it, but processes that have left the worker do not. And processes that replace
themselves faster than they can be killed may survive.

Run as `python reaper.py TRAINER_PID COMMAND...`; it adds its own number to the command.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_KILL_SECONDS = 4.0
"""The kernel ends a killed process at once, unless it waits for a device."""
_PAUSE_SECONDS = 0.005


def main() -> None:
    """Start the worker, wait until it or the trainer has ended, and end what is left."""
    trainer, command = int(sys.argv[1]), sys.argv[2:]
    waited = {signal.SIGTERM, signal.SIGCHLD, signal.SIGCONT}
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it is ignored, no status can be read
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)  # no core is written when it ends as the worker did
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    prctl(_PR_SET_PDEATHSIG, signal.SIGCONT, 0, 0, 0)
    if os.getppid() != trainer:
        return
    worker = os.posix_spawn(
        command[0],
        [*command, str(os.getpid())],
        os.environ,
        setsid=True,  # a verifier that signals its own group does not reach the reaper
        setsigmask=previous,
        setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
    )
    _drop_pipes()
    statuses: dict[int, int] = {}
    while worker not in statuses and os.getppid() == trainer:
        if signal.sigwait(waited) == signal.SIGTERM:
            break
        _reap(statuses)
    limit = time.monotonic() + _KILL_SECONDS
    while _reap(statuses) and time.monotonic() < limit:
        kill_children(os.getpid())
        signal.sigtimedwait({signal.SIGCHLD}, _PAUSE_SECONDS)
    _end_with(statuses.get(worker, signal.SIGKILL))


def kill_children(parent: int) -> None:
    """Kill the children of a process; their children then become its own, if it is a subreaper."""
    for child in _children(parent):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(child, signal.SIGKILL)


def _children(parent: int) -> list[int]:
    """List the children of a process that has one thread."""
    with contextlib.suppress(OSError), open(f"/proc/{parent}/task/{parent}/children", "rb") as file:
        return [int(child) for child in file.read().split()]
    children = []  # the kernel was built without that file
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
    """Leave the pipes to the worker, so that the trainer sees their end when the worker ends."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    os.close(nothing)


def _end_with(status: int) -> None:
    """End with the exit status of the worker, or by the signal that killed it."""
    if os.WIFSIGNALED(status):
        killer = os.WTERMSIG(status)
        with contextlib.suppress(OSError, ValueError):  # SIGKILL has no handler
            signal.signal(killer, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {killer})
        os.kill(os.getpid(), killer)
    os._exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
