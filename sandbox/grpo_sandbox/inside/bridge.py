"""Starts the process by which programs of a jail reach one Unix socket: the forwarder.

It listens at a port of the jail's own loopback, which no other network is behind. No program of the
jail can end it, and the supervisor does not end it with them: under Docker it has a user of its
own, and under bubblewrap it is outside the process namespace of the supervisor.
"""

from __future__ import annotations

import ctypes
import functools
import os
import resource
import socket
from typing import Any, NoReturn

from grpo_sandbox.inside.filter import CLONE, SystemCallFilter
from grpo_sandbox.inside.forward import DROPPED, Forwarder, connect_to
from grpo_sandbox.inside.frames import CONTROL
from grpo_sandbox.inside.places import drop_capabilities, unshare_processes

_LOOPBACK = "127.0.0.1"
_SEGMENT_BYTES, _WINDOW_BYTES = 4096, 1 << 17
"""Small segments and windows, by which the kernel measures the memory of a client's connection."""
_WAITING = 8
"""Connections that wait to be accepted."""
_MEMORY_BYTES = 1 << 29
_ANSWER_SECONDS = 2.0
_LAST_KEPT = 2
"""Descriptors up to this one are kept: stderr, for what Python says of a bug."""
_MOST_DESCRIPTORS = 256


class BridgeControl:
    """Tells a forwarder that a command has ended, and with it all that it had connected.

    Args:
        control: The supervisor's end; it gets a number that no child of a command keeps.
    """

    def __init__(self, control: socket.socket) -> None:
        os.dup2(control.fileno(), CONTROL, inheritable=False)
        control.close()
        self._control = socket.socket(fileno=CONTROL)
        self._control.settimeout(_ANSWER_SECONDS)

    def drop_all(self) -> bool:
        """End all connections; return False if the forwarder does not answer."""
        try:
            self._control.send(b"?")
            return self._control.recv(1) == DROPPED
        except OSError:
            return False


def start_forwarder(bridge: dict[str, Any], uid: int) -> BridgeControl:
    """Start the forwarder under the user `uid`, as a child for which nobody waits.

    `waitpid` ignores a child whose end sends no signal, so the supervisor still finds out when no
    process of a program is left.

    Args:
        bridge: `socket`, the path of the Unix socket in the jail, and `port`.
        uid: A user that no other process has.
    """
    listener = _listen(bridge["port"])
    ours, its = socket.socketpair()
    # PyDLL keeps Python's lock, so that the child has it, too. No flag, and no signal at the end.
    if ctypes.PyDLL(None).syscall(CLONE[os.uname().machine], 0, 0, 0, 0, 0) == 0:
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            _forward(listener, bridge, its)
        finally:
            os._exit(1)
    listener.close()
    its.close()
    return BridgeControl(ours)


def split_off_supervisor(bridge: dict[str, Any]) -> BridgeControl:
    """Return in a child that is process 1 of a namespace of its own; this process forwards.

    It ends when the child does, and everything in the jail ends with it.

    Args:
        bridge: As for `start_forwarder`.
    """
    listener = _listen(bridge["port"])
    ours, its = socket.socketpair()
    unshare_processes()
    if os.fork() == 0:
        listener.close()
        its.close()
        return BridgeControl(ours)
    try:
        drop_capabilities()
        _forward(listener, bridge, its)
    finally:
        os._exit(0)


def _listen(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, _SEGMENT_BYTES)
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        listener.setsockopt(socket.SOL_SOCKET, option, _WINDOW_BYTES)
    listener.bind((_LOOPBACK, port))
    listener.listen(_WAITING)
    return listener


def _forward(listener: socket.socket, bridge: dict[str, Any], control: socket.socket) -> NoReturn:
    kept = sorted([listener.fileno(), control.fileno()])
    for before, after in zip([_LAST_KEPT, *kept], [*kept, _MOST_DESCRIPTORS], strict=True):
        os.closerange(before + 1, after)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    SystemCallFilter.of_jail(()).apply()
    Forwarder(listener, functools.partial(connect_to, bridge["socket"]), control).run()
    os._exit(0)
