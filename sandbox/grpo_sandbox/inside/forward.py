"""Carries bytes between the connections of a listener and new ones to a Unix socket.

Both sides of a jail run it: inside, programs connect to a port of their own loopback, and outside,
the jail's forwarder connects to a socket that is its own. The bytes are not looked at.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Callable

MOST_CONNECTIONS = 32
"""Connections at once; further ones wait until one has ended."""
CHUNK_BYTES = 1 << 16
"""The most bytes that wait in each direction of a connection, besides those in the kernel."""
DROPPED = b"d"
"""The answer to a request to end all connections."""
_PAUSE_SECONDS = 0.05
"""How long to wait after a connection could not be accepted."""


class _Direction:
    """Bytes on their way from one socket to another."""

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self.source, self.sink = source, sink
        self._waiting = bytearray()
        self._source_ended = False
        self.is_done = False
        """Whether the source has ended, and the sink knows it."""

    @property
    def reads(self) -> bool:
        """Return whether there is room for more bytes of the source."""
        return not self._source_ended and len(self._waiting) < CHUNK_BYTES

    @property
    def writes(self) -> bool:
        """Return whether bytes wait for the sink."""
        return bool(self._waiting)

    def move(self) -> None:
        """Move what can be moved at once; raise OSError if the connection is broken."""
        with contextlib.suppress(BlockingIOError):
            if self.reads:
                data = self.source.recv(CHUNK_BYTES - len(self._waiting))
                self._waiting += data
                self._source_ended = not data
        with contextlib.suppress(BlockingIOError):
            if self._waiting:
                del self._waiting[: self.sink.send(self._waiting)]
        if self._source_ended and not self._waiting and not self.is_done:
            self.sink.shutdown(socket.SHUT_WR)
            self.is_done = True


class _Connection:
    """A connection of the listener, and the one to the other side that belongs to it."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self.near, self.far = near, far
        self._directions = (_Direction(near, far), _Direction(far, near))

    def move(self) -> bool:
        """Move bytes in both directions; return False if the connection has ended."""
        try:
            for direction in self._directions:
                direction.move()
        except OSError:
            return False
        return not all(direction.is_done for direction in self._directions)

    def events(self, end: socket.socket) -> int:
        """Return the events for which an end waits."""
        reads = any(each.source is end and each.reads for each in self._directions)
        writes = any(each.sink is end and each.writes for each in self._directions)
        return (select.POLLIN if reads else 0) | (select.POLLOUT if writes else 0)

    def close(self) -> None:
        self.near.close()
        self.far.close()


class Forwarder:
    """Forwards the connections of a listener.

    Args:
        listener: Accepts the connections; it is closed at the end.
        connect: Returns a new connection to the other side, or raises OSError.
        control: Its other end asks for what `drop_all` does by a byte, which is answered by one,
            and ends the work by being closed.
    """

    def __init__(
        self,
        listener: socket.socket,
        connect: Callable[[], socket.socket],
        control: socket.socket,
    ) -> None:
        self._listener, self._connect, self._control = listener, connect, control
        self._poller = select.poll()
        self._connections: dict[int, _Connection] = {}

    def run(self) -> None:
        """Forward until the control is closed."""
        self._listener.setblocking(False)
        self._poller.register(self._control, select.POLLIN)
        try:
            while True:
                full = len(self._connections) >= 2 * MOST_CONNECTIONS
                self._poller.register(self._listener, 0 if full else select.POLLIN)
                for descriptor, events in self._poller.poll():
                    if descriptor != self._control.fileno():
                        self._serve(descriptor, events)
                    elif self._control.recv(1):
                        self.drop_all()
                        self._control.send(DROPPED)
                        break
                    else:
                        return
        finally:
            self.drop_all()
            self._listener.close()
            self._control.close()

    def drop_all(self) -> None:
        """End all connections, also those that were not accepted yet."""
        for connection in set(self._connections.values()):
            self._settle(connection, is_open=False)
        with contextlib.suppress(OSError):
            while True:
                self._listener.accept()[0].close()

    def _serve(self, descriptor: int, events: int) -> None:
        if descriptor == self._listener.fileno():
            connection = self._accepted()
        else:
            connection = self._connections.get(descriptor)
        if connection is not None:
            # Nobody waits for an answer at a near end that is closed, whatever else there is.
            gone = events & (select.POLLHUP | select.POLLERR)
            is_gone = bool(gone) and descriptor == connection.near.fileno()
            self._settle(connection, is_open=connection.move() and not is_gone)

    def _accepted(self) -> _Connection | None:
        """Return a new connection; None if there is none, or the other side takes none."""
        try:
            near, _ = self._listener.accept()
        except BlockingIOError:
            return None
        except OSError:  # such as too many open files
            time.sleep(_PAUSE_SECONDS)
            return None
        try:
            far = self._connect()
        except OSError:
            near.close()
            return None
        near.setblocking(False)
        far.setblocking(False)
        return _Connection(near, far)

    def _settle(self, connection: _Connection, *, is_open: bool) -> None:
        """Wait for the events that a connection needs, or close it.

        A far end that needs none is not watched: if it was closed, poll would report that for ever.
        """
        for end in (connection.near, connection.far):
            self._connections.pop(end.fileno(), None)
            with contextlib.suppress(KeyError):
                self._poller.unregister(end)
            if is_open:
                self._connections[end.fileno()] = connection
                events = connection.events(end)
                if events or end is connection.near:
                    self._poller.register(end, events)
        if not is_open:
            connection.close()


def connect_to(path: str) -> socket.socket:
    """Return a new connection to a Unix socket; raise OSError if nobody takes it at once."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.setblocking(False)
        connection.connect(path)
    except OSError:
        connection.close()
        raise
    return connection
