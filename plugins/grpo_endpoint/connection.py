"""A connection of a client, which may neither send nor read slowly for ever."""

from __future__ import annotations

import asyncio
import json
from typing import ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from grpo_endpoint.errors import ApiError

_NOT_HTTP = ApiError(
    400, "this is not valid HTTP, or its headers are too long; send a request of HTTP/1.1"
)


class BoundedConnection(H11Protocol):
    """Speaks HTTP as uvicorn does, and closes connections that take too long.

    A client has `io_seconds` to send a request, from its first byte (or from the start of the
    connection) to its last, and as much to read on where its answer waits.
    """

    io_seconds: ClassVar[float]
    most: ClassVar[int]
    """Most connections at a time."""

    _reading: asyncio.TimerHandle | None = None
    _writing: asyncio.TimerHandle | None = None

    @classmethod
    def bounded(cls, *, io_seconds: float, most: int) -> type[BoundedConnection]:
        """Return this class with its limits."""
        return type(cls.__name__, (cls,), {"io_seconds": io_seconds, "most": most})

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin, or end at once where there are too many."""
        is_full = len(self.connections) >= self.most
        super().connection_made(transport)
        if is_full:
            transport.abort()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        super().connection_lost(exc)
        for timer in (self._reading, self._writing):
            if timer is not None:
                timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Take a part of a request."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Go on with the next request, which may be there already."""
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        """Note that the client does not read fast enough."""
        super().pause_writing()
        if self._writing is None:
            self._writing = self.loop.call_later(self.io_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Note that it has read."""
        super().resume_writing()
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP, in the form of all other errors."""
        is_open, cycle = self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE), self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True  # what its request is answered with goes nowhere
            cycle.message_event.set()
        if is_open:
            body = json.dumps(_NOT_HTTP.body).encode()
            headers = [
                ("content-type", "application/json"),
                ("content-length", str(len(body))),
                ("connection", "close"),
            ]
            reply = h11.Response(
                status_code=_NOT_HTTP.status, headers=headers, reason=b"Bad Request"
            )
            # An answer to HEAD has no body.
            self.transport.write(self.conn.send(reply) or b"")
            if self.conn.our_state is h11.SEND_BODY and not _is_head(cycle):
                self.transport.write(self.conn.send(h11.Data(data=body)) or b"")
        self.transport.close()

    def _watch(self) -> None:
        """Start the clock if a part of a request is here, and stop it if all of it is."""
        is_first = self.cycle is None
        is_partly_here = self.conn.their_state is h11.SEND_BODY or (
            self.conn.their_state is h11.IDLE and (is_first or bool(self.conn.trailing_data[0]))
        )
        if is_partly_here and self._reading is None:
            self._reading = self.loop.call_later(self.io_seconds, self.transport.abort)
        elif not is_partly_here and self._reading is not None:
            self._reading.cancel()
            self._reading = None


def _is_head(cycle: RequestResponseCycle | None) -> bool:
    """Return whether the request that is being read has the method HEAD."""
    return cycle is not None and not cycle.response_complete and cycle.scope["method"] == "HEAD"
