"""Where a call runs, and how everything of it is ended: under a uid of its own (Docker), or in namespaces of its own (bubblewrap)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

KILL_SECONDS, CLEAN_SECONDS = 1.5, 4.0
"""How long ending a call and cleaning up after it may take. With a kill on either side of it, that
is less than whoever asked waits for a supervisor beyond the limit of a call (`jail.GRACE_SECONDS`).
"""
FOLDER_MODE = 0o777
_CLONE_NEWNS, _CLONE_NEWUSER, _CLONE_NEWPID, _CLONE_NEWIPC = (
    0x20000,
    0x10000000,
    0x20000000,
    0x08000000,
)
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_PR_SET_PDEATHSIG = 1
_CAPABILITY_VERSION = 0x20080522
_SETTLE_SECONDS = 0.5
_OURS = 4
"""Descriptors below this one are a call's own: its three streams and its result."""


class OwnUid:
    """Every call of this jail runs under one uid, in a folder that is made for the call.

    The supervisor is root without the right to signal others or to look into their files, so what
    ends and cleans is done by processes that take the call's uid.

    Attributes:
        folder: where a call may write.
        system_calls: those that a call needs to get there, and must not have afterwards.
        own_processes: how many processes of ours count against the call's limit of processes.
    """

    system_calls: tuple[str, ...] = ()
    own_processes = 0

    def __init__(self, settings: dict[str, Any]) -> None:
        self._uid: int = settings["uid"]
        self._outer: str = settings["folder"]
        self.folder = os.path.join(self._outer, "call")
        self.begin()
        self._room = self._free()

    def begin(self) -> None:
        """Make the folder: with it, its mode, its times and its attributes are new."""
        os.mkdir(self.folder)
        os.chmod(self.folder, FOLDER_MODE)

    def enter(self) -> None:
        """Become the call's user. In the child."""
        os.setgroups([])
        os.setresgid(self._uid, self._uid, self._uid)
        os.setresuid(self._uid, self._uid, self._uid)

    def kill(self) -> None:
        """Kill every process of the call."""
        self._as_call(lambda: os.kill(-1, signal.SIGKILL), KILL_SECONDS)

    def clean(self) -> bool:
        """Reap what the call left and renew its folder; False if the jail has to be replaced."""
        deadline = time.monotonic() + CLEAN_SECONDS
        if not _reap(self.kill, deadline):
            return False
        try:
            os.rmdir(self.folder)
        except OSError:
            if not self._as_call(lambda: wipe(self.folder), deadline - time.monotonic()):
                return False
            os.rmdir(self.folder)
        self.begin()
        return self._has_room(min(deadline, time.monotonic() + _SETTLE_SECONDS))

    def _has_room(self, deadline: float) -> bool:
        """Return whether the file system is as empty as at the start.

        A removed file whose descriptor was sent through a socket that nobody has any more stays
        until the kernel collects such sockets, which it does when another one is closed.
        """
        while self._free() != self._room:
            if time.monotonic() > deadline:
                return False
            for end in socket.socketpair():
                end.close()
            time.sleep(0.005)
        return True

    def _free(self) -> tuple[int, int]:
        status = os.statvfs(self._outer)
        return status.f_bfree, status.f_ffree

    def _as_call(self, work: Callable[[], None], seconds: float) -> bool:
        """Do `work` in a process that may do what the call may; return whether it was done in time.

        Only its effective uid is that of the call, so that no process of the call may signal it.
        """
        helper = os.fork()
        if helper == 0:
            status = 1
            try:
                os.setresgid(0, self._uid, 0)
                os.setresuid(0, self._uid, 0)
                with contextlib.suppress(ProcessLookupError):
                    work()
                status = 0
            finally:
                os._exit(status)
        return _wait(helper, seconds)


class OwnNamespaces:
    """Every call has user, pid, ipc and mount namespaces and a folder of its own, which end with it.

    Without a second uid, this is what hides the supervisor and the neighbours from a program.
    The attributes are those of OwnUid.
    """

    system_calls = ("unshare", "mount")
    own_processes = 3  # the supervisor, the process that waits, and process 1 of the call

    def __init__(self, settings: dict[str, Any]) -> None:
        self.folder: str = settings["folder"]
        size, inodes = settings["folder_mb"] << 20, settings["inodes"]
        self._options = f"size={size},nr_inodes={inodes},mode=0{FOLDER_MODE:o}".encode()
        self._libc = ctypes.CDLL(None, use_errno=True)

    def enter(self) -> None:
        """Make the namespaces. In the child; only its children are in the new pid namespace.

        The first of them does nothing but be process 1 there, which signals do not reach. The
        caller goes on as the second. The process that was waits, ends the namespace with its
        process 1, and ends as the second did.
        """
        self._unshare(_CLONE_NEWNS)
        flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
        if self._libc.mount(b"call", self.folder.encode(), b"tmpfs", flags, self._options) != 0:
            raise OSError(ctypes.get_errno(), "no folder can be mounted for the call")
        self._unshare(_CLONE_NEWUSER | _CLONE_NEWPID | _CLONE_NEWIPC)
        self._drop_capabilities()
        first = os.fork()
        if first == 0:
            self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            os.closerange(0, _OURS)
            while True:
                signal.pause()
        pid = os.fork()
        if pid == 0:
            self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            os.setsid()
            return
        os.closerange(0, _OURS)
        _, status = os.waitpid(pid, 0)
        os.kill(first, signal.SIGKILL)
        os.waitpid(first, 0)
        if os.WIFSIGNALED(status):
            with contextlib.suppress(OSError):  # SIGKILL cannot be reset, and need not be
                signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
            os.kill(os.getpid(), os.WTERMSIG(status))
        os._exit(os.waitstatus_to_exitcode(status))

    def kill(self) -> None:
        """Kill every process of the call."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)

    def clean(self) -> bool:
        """Reap what the call left; False if the jail has to be replaced."""
        return _reap(self.kill, time.monotonic() + CLEAN_SECONDS)

    def _drop_capabilities(self) -> None:
        """Give up those over the new namespaces, which whoever makes them has."""
        header, none = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
        if self._libc.capset(header, none) != 0:
            raise OSError(ctypes.get_errno(), "capabilities cannot be given up")

    def _unshare(self, flags: int) -> None:
        if self._libc.unshare(flags) != 0:
            raise OSError(ctypes.get_errno(), "this system gives no nested namespaces")


def wipe(folder: str) -> None:
    """Empty `folder`, however deep it is and whatever the modes in it. Nobody else may be in it."""
    os.chdir(folder)
    waiting = [_empty_but_for_folders()]
    while True:
        if waiting[-1]:
            name = waiting[-1][-1]
            os.chmod(name, 0o700)
            os.chdir(name)
            waiting.append(_empty_but_for_folders())
        elif len(waiting) == 1:
            return
        else:
            waiting.pop()
            os.chdir("..")
            os.rmdir(waiting[-1].pop())


def _empty_but_for_folders() -> list[str]:
    """Remove everything but the folders from the working folder, and return their names."""
    with os.scandir(".") as entries:
        listed = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in listed:
        if not is_folder:
            os.unlink(name)
    return [name for name, is_folder in listed if is_folder]


def _reap(kill: Callable[[], None], deadline: float) -> bool:
    """Kill and reap until no child is left; False if that takes too long."""
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < deadline:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                kill()
                time.sleep(0.001)
        return False
    return True


def _wait(pid: int, seconds: float) -> bool:
    """Return whether the child `pid` ends well within `seconds`. One that does not is left alone."""
    pidfd = os.pidfd_open(pid)
    try:
        if not select.select([pidfd], [], [], max(0.0, seconds))[0]:
            return False
        _, status = os.waitpid(pid, 0)
        return status == 0
    except ChildProcessError:
        return False
    finally:
        os.close(pidfd)
