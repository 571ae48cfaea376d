"""Keep a server of the Model Context Protocol for one episode, and make calls of its tools."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from grpo_core import DescribedTool
from grpo_mcp.server import McpError, McpServer, called_by, reason

if TYPE_CHECKING:
    from mcp import Client

__all__ = ["Connection", "McpError"]

_ENDED = (
    "error: the server ended in this call and was started again; what it held before is forgotten"
)


_TRIES = 5
"""How often a call is made that gets an HTTP error, before it is decided who is to blame."""
_FIRST_PAUSE_SECONDS = 0.2
_HTTP_ERROR = "Server returned an error response"
"""How the SDK words a failure for which the server gave a status and no answer."""


class _EndedError(Exception):
    """The connection ended before the answer to a call."""


class _StatusError(Exception):
    """The server, or what stands before it, answered with an HTTP status of failure."""


class Connection:
    """Connects one episode with a server.

    Calls are made one by one, in order. If the server ends in a call, it is started again, the
    calls before are repeated where its process held their effects, and then this one alone: if that
    ends it again, the call is to blame, and the policy is told; else the episode goes on as if
    nothing had happened. A call that gets an HTTP error is repeated, too: if the server lists its
    tools after each failure, the call is to blame, and the policy is told; else the server is
    unavailable or limits its rate, which is an error of the attempt.

    Args:
        server: the server.
    """

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self._lock = asyncio.Lock()
        self._made: list[tuple[str, Mapping[str, Any]]] = []
        """The calls that led to the server's state."""
        self._tools: list[DescribedTool] = []
        self._client: Client | None = None
        """None while there is no server in the state of the calls made so far."""
        self._stop: asyncio.Event | None = None
        self._keeper: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Start the server or connect to it, and ask for its tools.

        Raises:
            McpError: it cannot be used.
        """
        async with self._lock:
            started = asyncio.get_running_loop().time()
            self._client = await self._restarted()
            left = self._server.seconds - (asyncio.get_running_loop().time() - started)
            tools = await self._server.list_tools(self._client, seconds=left)
            self._tools = [
                called_by(tool, partial(self._call, tool.name))
                for tool in self._server.offered(tools)
            ]

    def tools(self) -> list[DescribedTool]:
        """Return the tools of the server, which can be called until the connection is closed."""
        return list(self._tools)

    async def close(self) -> None:
        """Stop the server or disconnect from it."""
        self._client = None
        keeper, stop, self._keeper = self._keeper, self._stop, None
        if keeper is None or stop is None:
            return
        stop.set()
        with contextlib.suppress(Exception):  # what a server does in the end changes nothing
            await keeper

    async def _call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Make a call and return its result as a text.

        Raises:
            McpError: the server cannot be started again.
        """
        async with self._lock:
            client, self._client = self._client, None
            text: str | None = None
            if client is not None:
                try:
                    text = await self._answered(client, name, arguments)
                except _EndedError:
                    pass
                except asyncio.CancelledError:  # the deadline; the server is as it was
                    self._client = client
                    raise
            if text is None:
                client, text = await self._recovered(name, arguments)
            else:
                self._made.append((name, arguments))
            self._client = client
            return text

    async def _recovered(self, name: str, arguments: Mapping[str, Any]) -> tuple[Client, str]:
        """Return a new server that was brought to the present state, and the result of a call."""
        try:
            client = await self._restarted()
            for earlier in self._made if self._server.is_fresh else ():
                await self._answered(client, *earlier)
            text = await self._answered(client, name, arguments)
            self._made.append((name, arguments))
        except _EndedError:
            self._made.clear()
            return await self._restarted(), _ENDED
        return client, text

    async def _answered(self, client: Client, name: str, arguments: Mapping[str, Any]) -> str:
        """Return what `_result` returns, after repetitions if the server fails by HTTP errors.

        Raises:
            _EndedError: the connection has ended.
            McpError: the server fails at other requests as well.
        """
        is_available = True
        for attempt in range(_TRIES):
            with contextlib.suppress(_StatusError):
                return await self._result(client, name, arguments)
            try:
                await self._server.list_tools(client)
            except Exception:  # noqa: BLE001 - this request has no argument to blame
                is_available = False
            await asyncio.sleep(_FIRST_PAUSE_SECONDS * 2**attempt)
        if not is_available:
            raise McpError(
                f"the MCP server {self._server.label} answers with HTTP errors ({_TRIES} tries); "
                "check whether it is overloaded or limits its rate"
            )
        return f"error: {_HTTP_ERROR}"

    async def _result(self, client: Client, name: str, arguments: Mapping[str, Any]) -> str:
        """Return the result of a call as a text.

        Raises:
            _EndedError: the connection has ended.
            _StatusError: there is an HTTP status of failure instead of an answer.
        """
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED

        if self._keeper is None or self._keeper.done():
            raise _EndedError
        try:
            result = await client.call_tool(name, dict(arguments))
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                raise _EndedError from None
            if error.message == _HTTP_ERROR:
                raise _StatusError from None
            return f"error: {error.message}"
        except Exception as error:  # noqa: BLE001 - whatever the SDK makes of a server's answer
            if self._keeper.done() or isinstance(error, OSError):
                raise _EndedError from None
            return f"error: {reason(error)}"
        text = "\n".join(_block_text(block) for block in result.content)
        return f"error: {text}" if result.is_error else text

    async def _restarted(self) -> Client:
        """Stop the server if there is one, and start it."""
        await self.close()
        ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._stop = asyncio.Event()
        self._keeper = asyncio.create_task(self._keep(ready, self._stop))
        try:
            return await asyncio.shield(ready)
        except asyncio.CancelledError:
            await self.close()
            raise

    async def _keep(self, ready: asyncio.Future[Client], stop: asyncio.Event) -> None:
        """Hold the connection open, in the one task that may open and close it."""
        try:
            async with self._server.client() as client:
                ready.set_result(client)
                await stop.wait()
        except Exception as error:
            if not ready.done():
                ready.set_exception(error)
            else:
                logging.getLogger(__name__).debug("an MCP server ended", exc_info=True)


def _block_text(block: Any) -> str:
    """Return a block of a result as a text; of an image or a sound, only its kind."""
    return str(block.text) if block.type == "text" else f"[{block.type}]"
