"""The places in which calls run, and how a call is ended and cleaned up.

A call runs under a uid of its own (Docker), or in namespaces of its own (bubblewrap).
"""

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
"""How long ending a call and cleaning up after it may take. With a kill before and after it, this
is less than the time that a caller waits for a supervisor beyond the limit of a call
(`jail.GRACE_SECONDS`)."""
FOLDER_MODE = 0o777
HOME = "verifier"
"""The name of the home folder of isolated commands, beside the folder of a session."""
_CLOSED_MODE = 0o755
_CLONE_NEWNS, _CLONE_NEWUSER, _CLONE_NEWPID = 0x20000, 0x10000000, 0x20000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_NO_FLAGS = 0
_PR_SET_PDEATHSIG = 1
_CAPABILITY_VERSION = 0x20080522
_SETTLE_SECONDS = 0.5
_CALL_DESCRIPTORS = 4
"""Descriptors below this one are a call's own: its three streams and its result."""


class OwnUid:
    """Runs every call of a jail under one uid, in a folder that is made for the call.

    The supervisor is root without the right to signal other users' processes or to read their
    files, so processes that take the call's uid end the call and clean up.

    Attributes:
        folder: Where a call may write.
        system_calls: System calls that a call needs to enter, and must not have afterwards.
        own_processes: Number of this package's processes that count against the call's limit.
    """

    system_calls: tuple[str, ...] = ()
    own_processes = 0

    def __init__(self, settings: dict[str, Any]) -> None:
        self._uid: int = settings["uid"]
        self.folder: str = settings["folder"]
        self._outer = os.path.dirname(self.folder)
        self._home = os.path.join(self._outer, HOME)
        self.begin()
        self._room = self._free()

    def begin(self) -> None:
        """Make the folder; its mode, times and attributes are new, too."""
        os.mkdir(self.folder)
        os.chmod(self.folder, FOLDER_MODE)

    def begin_session(self) -> bool:
        """Prepare for the requests of one session; return False if the jail has to be replaced.

        The folder, which is made for each call, serves the whole session.
        """
        os.mkdir(self._home)
        os.chmod(self._home, _CLOSED_MODE)
        return True

    def open_home(self) -> str:
        """Return a home for the next command alone: empty, and closed to all others."""
        os.chmod(self._home, FOLDER_MODE)
        return self._home

    def settle(self) -> bool:
        """Reap a command's processes, keep the folder; return False to replace the jail."""
        settled = _reap(self.kill, time.monotonic() + CLEAN_SECONDS)
        os.chmod(self.folder, FOLDER_MODE)
        return settled and self._close_home()

    def end_session(self) -> bool:
        """Clean up after a session as after a call."""
        if not self._close_home():
            return False
        os.rmdir(self._home)
        return self.clean()

    def enter(self) -> None:
        """Become the call's user; called in the child."""
        os.setgroups([])
        os.setresgid(self._uid, self._uid, self._uid)
        os.setresuid(self._uid, self._uid, self._uid)

    def kill(self) -> None:
        """Kill every process of the call."""
        self._as_call(lambda: os.kill(-1, signal.SIGKILL), KILL_SECONDS)

    def clean(self) -> bool:
        """Reap the call's processes and renew its folder.

        Returns:
            False if the jail has to be replaced.
        """
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

    def _close_home(self) -> bool:
        """Empty the home of isolated commands; return False to replace the jail."""
        if os.listdir(self._home) and not self._as_call(lambda: wipe(self._home), CLEAN_SECONDS):
            return False
        os.chmod(self._home, _CLOSED_MODE)
        return True

    def _has_room(self, deadline: float) -> bool:
        """Return whether the file system is as empty as at the start.

        A removed file whose descriptor was sent through a socket that no process has any more
        stays until the kernel collects such sockets, which it does when another one is closed.
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
        """Do `work` in a process with the call's rights; return whether it was done in time.

        Only the effective uid is the call's, so that no process of the call may signal the helper.
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
    """Gives every call its own user, pid and mount namespaces and folder, which end with it.

    Without a second uid, this hides the supervisor and other calls from a program. An ipc namespace
    is not needed: the filter of the jail refuses every system call that makes objects in one. The
    attributes are those of OwnUid.
    """

    system_calls = ("unshare", "mount", "umount2")

    def __init__(self, settings: dict[str, Any]) -> None:
        self.folder: str = settings["folder"]
        self._home = os.path.join(os.path.dirname(self.folder), HOME)
        size, inodes = settings["folder_mb"] << 20, settings["inodes"]
        self._options = f"size={size},nr_inodes={inodes},mode=0{FOLDER_MODE:o}".encode()
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._in_session = False
        # The supervisor, the process that waits, process 1 of the call, and the forwarder.
        self.own_processes = 3 + (settings["bridge"] is not None)
        if settings["session"]:
            _unshare(_CLONE_NEWNS)  # bwrap's own mounts belong to namespaces outside

    def begin_session(self) -> bool:
        """Mount the folder of a session, which all its commands share."""
        self._mount(self.folder, _MS_NOSUID | _MS_NODEV)
        self._in_session = True
        return True

    def open_home(self) -> str:
        """Return a home for this process and its children alone, and empty."""
        _unshare(_CLONE_NEWNS)
        self._mount(self._home, _MS_NOSUID | _MS_NODEV)
        return self._home

    def settle(self) -> bool:
        """Reap a command's processes, keep the folder; return False to replace the jail."""
        settled = self.clean()
        os.chmod(self.folder, FOLDER_MODE)
        return settled

    def end_session(self) -> bool:
        """Reap what is left and unmount the folder; return False to replace the jail."""
        self._in_session = False
        settled = self.clean()
        return settled and self._libc.umount2(self.folder.encode(), _NO_FLAGS) == 0

    def enter(self) -> None:
        """Make the namespaces; called in the child, whose children are in the new pid namespace.

        The first of these children is process 1 there, which signals do not reach, and does nothing
        else. The second one returns from this function. The calling process waits for the second
        one, ends the namespace by killing process 1, and then ends as the second one did.
        """
        if not self._in_session:
            _unshare(_CLONE_NEWNS)
            self._mount(self.folder, _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
        _unshare(_CLONE_NEWUSER | _CLONE_NEWPID)
        drop_capabilities()
        first = os.fork()
        if first == 0:
            self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            os.closerange(0, _CALL_DESCRIPTORS)
            while True:
                signal.pause()
        pid = os.fork()
        if pid == 0:
            self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            os.setsid()
            return
        os.closerange(0, _CALL_DESCRIPTORS)
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
        """Reap the call's processes; return False if the jail has to be replaced."""
        return _reap(self.kill, time.monotonic() + CLEAN_SECONDS)

    def _mount(self, folder: str, flags: int) -> None:
        if self._libc.mount(b"call", folder.encode(), b"tmpfs", flags, self._options) != 0:
            raise OSError(ctypes.get_errno(), "no folder can be mounted for the call")


def drop_capabilities() -> None:
    """Give up the capabilities over new namespaces, which their maker has."""
    header, none = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    if ctypes.CDLL(None, use_errno=True).capset(header, none) != 0:
        raise OSError(ctypes.get_errno(), "capabilities cannot be given up")


def unshare_processes() -> None:
    """Make the next child of this process be process 1 of a PID namespace of its own."""
    _unshare(_CLONE_NEWPID)


def _unshare(flags: int) -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(flags) != 0:
        raise OSError(ctypes.get_errno(), "this system gives no nested namespaces")


def wipe(folder: str) -> None:
    """Empty `folder`, whatever its depth and modes; no other process may use it meanwhile."""
    os.chdir(folder)
    waiting = [_remove_files()]
    while True:
        if waiting[-1]:
            name = waiting[-1][-1]
            os.chmod(name, 0o700)
            os.chdir(name)
            waiting.append(_remove_files())
        elif len(waiting) == 1:
            return
        else:
            waiting.pop()
            os.chdir("..")
            os.rmdir(waiting[-1].pop())


def _remove_files() -> list[str]:
    """Remove everything but the folders from the working folder, and return their names."""
    with os.scandir(".") as entries:
        listed = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in listed:
        if not is_folder:
            os.unlink(name)
    return [name for name, is_folder in listed if is_folder]


def _reap(kill: Callable[[], None], deadline: float) -> bool:
    """Kill and reap until no child is left; return False if that takes too long."""
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < deadline:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                kill()
                time.sleep(0.001)
        return False
    return True


def _wait(pid: int, seconds: float) -> bool:
    """Return whether the child `pid` ends with status 0 within `seconds`; do not kill it."""
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
