"""Say how a server of the Model Context Protocol is reached, and which tools it has."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from grpo_core import ConfigError, DescribedTool, GrpoError, MissingExtraError, Session
from grpo_core.plugins.versions import check_versions
from grpo_mcp.guard import guarded
from grpo_mcp.jailed import session_transport
from grpo_mcp.listing import all_tools
from grpo_mcp.process import process_transport
from grpo_mcp.web import web_transport

if TYPE_CHECKING:
    from mcp import Client

_TAIL_CHARACTERS = 500
"""How much of the end of a server's standard error a message quotes."""
_LOG_BYTES = 65_536
"""How much of the end of a server's standard error is read for that."""
_LABEL_CHARACTERS = 120
"""How much of a command a message quotes."""


class McpError(GrpoError):
    """A server cannot be started or reached: a failure of the infrastructure, never a reward."""


class McpServer:
    """Describes a server of the Model Context Protocol, and the tools that it offers.

    One of `command`, `url` and `transport` is given. Each episode has a connection of its own, and
    with `command` a process of its own, so what one episode does in a server no other sees.

    Args:
        command: a program and its arguments, which speaks the protocol by its standard input and
            output. It gets few variables of this process's environment, and those of `variables`.
        url: the address of a server that runs already (Streamable HTTP). All episodes share it, so
            its tools should keep no state.
        transport: returns a context manager with the two streams of the package `mcp`, for a
            server that is reached in another way, as inside a jail.
        variables: environment variables of `command`.
        names: the tools to offer; all if left out.
        seconds: the deadline for starting the server and listing its tools.
    """

    def __init__(
        self,
        command: Sequence[str] = (),
        *,
        url: str = "",
        transport: Callable[[], AbstractAsyncContextManager[Any]] | None = None,
        variables: Mapping[str, str] | None = None,
        names: Sequence[str] | None = None,
        seconds: float = 30.0,
    ) -> None:
        if bool(command) + bool(url) + (transport is not None) != 1:
            raise ConfigError("an MCP server is given by one of: command, url, transport")
        self.command, self.url, self.transport = tuple(command), url, transport
        self.variables = dict(variables or {})
        self.names = None if names is None else tuple(names)
        self.seconds = seconds
        self._tools: tuple[DescribedTool, ...] | None = None
        self._listing = threading.Lock()

    @property
    def label(self) -> str:
        """Return what messages call the server."""
        return " ".join(self.command)[:_LABEL_CHARACTERS] or self.url or "of a transport"

    @property
    def is_fresh(self) -> bool:
        """Return whether a connection begins with a server that has no state yet."""
        return bool(self.command)

    def tools(self) -> list[DescribedTool]:
        """Return descriptions of the tools, for `Environment.tools`.

        The server is asked once, and what it answers is kept.

        Raises:
            McpError: it cannot be started or reached.
            ConfigError: it has no tool of a name in `names`.
            MissingExtraError: the extra `mcp` is not installed.
        """
        with self._listing:
            if self._tools is None:
                outcome: list[Any] = []

                def ask() -> None:
                    try:
                        outcome.append(asyncio.run(self._list_once()))
                    except Exception as error:  # noqa: BLE001 - it is raised below
                        outcome.append(error)

                thread = threading.Thread(target=ask)  # the caller's may run an event loop
                thread.start()
                thread.join()
                if isinstance(outcome[0], Exception):
                    raise outcome[0]
                self._tools = tuple(outcome[0])
            return list(self._tools)

    def inside(self, session: Session) -> McpServer:
        """Return the same server as it runs in a session of a sandbox (see `session_transport`).

        Raises:
            ConfigError: it has no command.
        """
        if not self.command:
            raise ConfigError("an MCP server that runs in a session is given by its command")
        transport = partial(session_transport, session, self.command)
        return McpServer(transport=transport, names=self.names, seconds=self.seconds)

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """Start the server or connect to it, and stop it or disconnect in the end.

        Raises:
            McpError: it cannot be started or reached, within the deadline.
        """
        client_class, started = _imported(), False
        with tempfile.TemporaryFile("w+", errors="replace") as log:
            try:
                async with contextlib.AsyncExitStack() as stack:
                    async with asyncio.timeout(self.seconds):
                        client = client_class(self._transport(log), cache=None)
                        await stack.enter_async_context(client)
                    started = True
                    yield client
            except Exception as error:
                if started:
                    raise
                log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_BYTES))
                late = isinstance(error, TimeoutError)
                fault = f"it was not ready in {self.seconds:g} s" if late else reason(error)
                raise McpError(
                    f"the MCP server {self.label} cannot be used: {fault}"
                    + (f"; its last output: {tail}" if (tail := _tail(log.read())) else "")
                ) from None

    async def list_tools(
        self, client: Client, *, seconds: float | None = None
    ) -> list[DescribedTool]:
        """Return descriptions of the tools that a connected server has, of all of them.

        Args:
            client: is connected.
            seconds: what is left of the deadline; None: all of it.

        Raises:
            McpError: the server does not list them in time, or lists too many.
        """
        try:
            async with asyncio.timeout(self.seconds if seconds is None else seconds):
                tools = await all_tools(client)
        except Exception as error:  # noqa: BLE001 - whatever the SDK raises, the server failed
            late = isinstance(error, TimeoutError)
            fault = f"it took longer than {self.seconds:g} s" if late else reason(error)
            raise McpError(
                f"the MCP server {self.label} does not list its tools: {fault}"
            ) from None
        return [
            DescribedTool(tool.name, tool.description, tool.schema, _not_connected)
            for tool in tools
        ]

    def offered(self, tools: Sequence[DescribedTool]) -> list[DescribedTool]:
        """Return those of the server's tools that are in `names`.

        Raises:
            ConfigError: there is none of such a name.
        """
        if self.names is None:
            return list(tools)
        by_name = {tool.name: tool for tool in tools}
        if missing := [name for name in self.names if name not in by_name]:
            raise ConfigError(
                f"the MCP server {self.label} has no tool {', '.join(missing)}; it has "
                f"{', '.join(by_name) or 'none'}"
            )
        return [by_name[name] for name in self.names]

    async def _list_once(self) -> list[DescribedTool]:
        """Return what `tools` does, asked of a server that is stopped again."""
        failure: McpError | None = None
        async with self.client() as client:  # which makes a group of an exception in its block
            try:
                tools = await self.list_tools(client)
            except McpError as error:
                failure = error
        if failure is not None:
            raise failure
        return self.offered(tools)

    def _transport(self, log: Any) -> Any:
        """Return what the client of the SDK connects to."""
        if self.transport is not None:
            return guarded(self.transport())
        if self.url:
            return guarded(web_transport(self.url))
        return guarded(process_transport(self.command, self.variables, log))


def called_by(tool: DescribedTool, call: Callable[[Mapping[str, Any]], object]) -> DescribedTool:
    """Return the tool with a function that makes its calls."""
    return replace(tool, call=call)


def reason(error: BaseException) -> str:
    """Return an error of the SDK as a short text; of a group, its first one."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}".rstrip(": ")[:_TAIL_CHARACTERS]


def _tail(text: str) -> str:
    return " ".join(text.split())[-_TAIL_CHARACTERS:]


def _not_connected(arguments: Mapping[str, Any]) -> object:
    raise ConfigError("a tool of an MCP server is called in an episode; derive it from McpEpisode")


def _imported() -> type[Client]:
    """Return the client of the SDK.

    Raises:
        MissingExtraError: the SDK is not installed.
    """
    check_versions("an MCP server", "mcp")
    try:
        from mcp import Client
    except ImportError as error:
        package = str(error.name or "mcp")
        raise MissingExtraError("an MCP server", "mcp", package=package) from None
    return Client
