"""The outer half of a session's way to one Unix socket: a socket of its own, and what it leads to.

A jail is shown a folder with nothing but that socket, so the owner and the mode of the other one,
and what is beside it, do not matter; and it may be made again meanwhile.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import socket
import stat
import tempfile
import threading
from pathlib import Path

from grpo_core import ConfigError, SandboxError
from grpo_sandbox.inside.forward import MOST_CONNECTIONS, Forwarder, connect_to

SHOWN_AT = "/run/bridge"
"""Where a jail sees the folder."""
SOCKET = "socket"
"""The name of the socket in it."""
PREFIX = "grpo-bridge-"
"""How the names of the private folders begin."""
_FOLDERS = ("/tmp", "/var/tmp", "/run")
_JOIN_SECONDS = 5.0


class Bridge:
    """Leads from a folder that a jail may see to a Unix socket of this machine.

    Args:
        target: Path of the socket.

    Attributes:
        folder: The folder to be shown at `SHOWN_AT`.

    Raises:
        ConfigError: There is no socket at that path.
        SandboxError: The folder cannot be made.
    """

    def __init__(self, target: str | Path) -> None:
        try:
            is_socket = stat.S_ISSOCK(os.stat(target).st_mode)
        except (OSError, ValueError):
            is_socket = False
        if not is_socket:
            raise ConfigError(
                f"a session should reach the Unix socket {str(target)!r}, but there is none at "
                "this path; start what listens there first"
            )
        try:
            self._private = Path(tempfile.mkdtemp(prefix=PREFIX, dir=_open_folder()))
            self.folder = self._private / "shown"
            self.folder.mkdir(mode=0o755)
            listener = _listen(self.folder / SOCKET)
        except OSError as error:
            raise SandboxError(f"a session cannot get a socket of its own: {error}") from None
        self._control, its = socket.socketpair()
        forwarder = Forwarder(listener, functools.partial(connect_to, str(target)), its)
        self._thread = threading.Thread(target=forwarder.run, name="grpo bridge", daemon=True)
        self._thread.start()

    def give_to(self, uid: int) -> None:
        """Let the user `uid` alone reach the socket by its path; needs the rights of root."""
        for path in (self._private, self.folder, self.folder / SOCKET):
            os.chown(path, uid, -1)

    def close(self) -> None:
        """End all connections and remove the folder; more than once is harmless."""
        self._control.close()
        self._thread.join(_JOIN_SECONDS)
        shutil.rmtree(self._private, ignore_errors=True)


def settings_of(bridge: Bridge | None, port: int) -> dict[str, str | int] | None:
    """Return what the supervisor of a jail is told of its bridge; see `inside.bridge`."""
    return None if bridge is None else {"socket": f"{SHOWN_AT}/{SOCKET}", "port": port}


def _open_folder() -> str:
    """Return a folder for temporary files that another user can reach: a jail has another one."""
    usual = tempfile.gettempdir()
    for name in (usual, *_FOLDERS) if os.geteuid() == 0 else ():
        folder = Path(name)
        with contextlib.suppress(OSError):
            if all(each.stat().st_mode & stat.S_IXOTH for each in (folder, *folder.parents)):
                return name
    return usual


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    with contextlib.ExitStack() as stack:
        stack.callback(listener.close)
        listener.bind(str(path))
        path.chmod(0o666)  # the folder above is private; the user in a jail is another one
        listener.listen(MOST_CONNECTIONS)
        stack.pop_all()
    return listener
