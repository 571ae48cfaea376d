"""Open the sockets at which the server listens."""

from __future__ import annotations

import socket
import stat
from contextlib import suppress
from pathlib import Path

from grpo_core import UserError

_BACKLOG = 1024


def tcp_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address.

    Args:
        host: the address, or its name.
        port: the port; 0 for a free one.

    Raises:
        UserError: it cannot listen there.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise UserError(
            f"the endpoint cannot listen at {host}, port {port}: {error.strerror or error}; "
            "choose another port (0 takes a free one), or another host"
        ) from None
    return listener


def unix_socket(path: Path) -> socket.socket:
    """Return a Unix socket that listens at `path`; the socket of a server that died is replaced.

    Raises:
        UserError: it cannot listen there.
    """
    listener = socket.socket(socket.AF_UNIX)
    try:
        _remove_dead(path)
        listener.bind(str(path))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise UserError(
            f"the endpoint cannot listen at the Unix socket {path}: {error.strerror or error}; "
            "choose another path, of at most 100 characters, in a folder that exists"
        ) from None
    return listener


def remove_socket(path: Path) -> None:
    """Remove the file of a Unix socket."""
    path.unlink(missing_ok=True)


def _remove_dead(path: Path) -> None:
    """Remove a socket at which nobody listens any more; anything else makes `bind` fail.

    Raises:
        OSError: it cannot be removed.
    """
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            return
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()
