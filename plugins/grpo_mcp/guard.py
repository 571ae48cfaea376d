"""Stand between a server and the SDK's client, and let through nothing but answers to its requests.

What the SDK does with other messages costs memory or time for each: it starts a task for every
request of the server, and forgets every answer that it cannot read, whose caller then waits.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from grpo_core.calls.json_limits import JsonLimits, check_json

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams
    from mcp.shared.message import SessionMessage

MAX_MESSAGE_BYTES = 8 * 2**20
"""Largest message of a server."""
MOST_MESSAGES = 10_000
"""Most other messages between two answers; a server that sends more is stopped."""
_LIMITS = JsonLimits(containers=50_000, strings=200_000, values=600_000)
_REPLIES = 16
"""Most answers to requests of the server that wait until it reads them; others are dropped."""
_INTERNAL_ERROR, _METHOD_NOT_FOUND = -32603, -32601
_LOGGER = logging.getLogger(__name__)


class UnreadableResultError(Exception):
    """A message of a server cannot be read.

    Args:
        reason: what is wrong with it.
        is_message: it was meant as a message; otherwise it is other output, as that of a program
            that says hello.
    """

    def __init__(self, reason: str, *, is_message: bool = True) -> None:
        super().__init__(reason)
        self.is_message = is_message


def read_message(line: bytes | str) -> SessionMessage:
    """Return the message that a line of JSON holds.

    Raises:
        UnreadableError: it holds none, or one that is too large.
    """
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter

    try:
        if len(line) > MAX_MESSAGE_BYTES:
            raise ValueError(f"it has more than {MAX_MESSAGE_BYTES} bytes")
        check_json(line, _LIMITS)
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except (ValueError, RecursionError) as error:
        start = line[:4096] if isinstance(line, bytes) else line[:4096].encode(errors="replace")
        reason = " ".join(str(error).split())[:200]
        raise UnreadableResultError(reason, is_message=b'"jsonrpc"' in start) from None


@contextlib.asynccontextmanager
async def guarded(
    transport: AbstractAsyncContextManager[TransportStreams],
) -> AsyncIterator[TransportStreams]:
    """Open a transport, and yield streams that carry the client's requests and their answers.

    An answer that cannot be read becomes an error of the request. Pings of the server are answered,
    other requests refused, and its notifications dropped.
    """
    import anyio
    from mcp.shared.message import SessionMessage

    async with transport as (from_server, to_server):
        answers, to_client = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        from_client, requests = anyio.create_memory_object_stream[SessionMessage](0)
        guard = _Guard(answers, to_server)
        async with anyio.create_task_group() as group:
            for work in (guard.read(from_server), guard.write(requests), guard.reply()):
                group.start_soon(_await, work)
            yield to_client, from_client
            group.cancel_scope.cancel()


class _Guard:
    """Pass messages on in both directions.

    Args:
        answers: takes what the client may see.
        to_server: takes what the server may see.
    """

    def __init__(self, answers: Any, to_server: Any) -> None:
        import anyio

        self._answers, self._to_server = answers, to_server
        self._pending: set[Any] = set()
        self._known: set[Any] = set()
        """The ids of all requests so far; an answer to one that was given up may still come."""
        self._others = 0
        self._replies, self._replies_out = anyio.create_memory_object_stream[Any](_REPLIES)

    async def write(self, requests: Any) -> None:
        """Pass the client's messages on."""
        from mcp_types import JSONRPCRequest

        async with requests, self._to_server:
            async for sent in requests:
                message = sent.message
                if isinstance(message, JSONRPCRequest):
                    self._pending.add(message.id)
                    self._known.add(message.id)
                elif getattr(message, "method", "") == "notifications/cancelled":
                    self._pending.discard((message.params or {}).get("requestId"))
                await self._to_server.send(sent)

    async def reply(self) -> None:
        """Send the answers to the server's own requests."""
        import anyio

        with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            async for message in self._replies_out:
                await self._to_server.send(message)

    async def read(self, from_server: Any) -> None:
        """Pass the server's answers on, until it has sent too much else."""
        import anyio

        with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            async with self._answers:
                async for item in from_server:
                    await self._take(item)
                    if self._others > MOST_MESSAGES:
                        _LOGGER.warning(
                            "an MCP server sent %d messages that nobody asked for, and is stopped",
                            self._others,
                        )
                        return

    async def _take(self, item: SessionMessage | Exception) -> None:
        from mcp_types import JSONRPCError, JSONRPCRequest, JSONRPCResponse

        self._others += 1
        if isinstance(item, Exception):
            if _is_meant(item):
                await self._fail(f"the server's answer cannot be read: {item}")
            return
        message = item.message
        if isinstance(message, JSONRPCRequest):
            self._answer(message)
        elif isinstance(message, (JSONRPCResponse, JSONRPCError)):
            if message.id in self._pending:
                self._pending.discard(message.id)
                self._others = 0
                await self._answers.send(item)
            elif message.id not in self._known:
                await self._fail(f"the server answered with the unknown id {message.id!r:.50}")

    async def _fail(self, reason: str) -> None:
        """Answer every request that waits with an error."""
        from mcp.shared.message import SessionMessage
        from mcp_types import ErrorData, JSONRPCError

        for name in [*self._pending]:
            self._pending.discard(name)
            error = ErrorData(code=_INTERNAL_ERROR, message=reason)
            await self._answers.send(
                SessionMessage(JSONRPCError(jsonrpc="2.0", id=name, error=error))
            )

    def _answer(self, request: Any) -> None:
        """Answer a request of the server, unless it reads no answers."""
        import anyio
        from mcp.shared.message import SessionMessage
        from mcp_types import ErrorData, JSONRPCError, JSONRPCResponse

        error = ErrorData(code=_METHOD_NOT_FOUND, message="this client has no such method")
        reply = (
            JSONRPCResponse(jsonrpc="2.0", id=request.id, result={})
            if request.method == "ping"
            else JSONRPCError(jsonrpc="2.0", id=request.id, error=error)
        )
        with contextlib.suppress(anyio.WouldBlock):
            self._replies.send_nowait(SessionMessage(reply))


def _is_meant(error: Exception) -> bool:
    """Return whether what could not be read was meant as a message.

    Other transports than those of this package hand on pydantic's errors, with the line.
    """
    if isinstance(error, UnreadableResultError):
        return error.is_message
    errors = getattr(error, "errors", None)
    return callable(errors) and '"jsonrpc"' in str(errors()[0].get("input"))[:4096]


async def _await(work: Any) -> None:
    await work
