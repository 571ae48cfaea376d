"""Define the episode that offers the tools of a server beside its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from grpo_core import Message, Sandbox, Session, Task, ToolEpisode
from grpo_mcp.connection import Connection
from grpo_mcp.server import McpServer

Data = TypeVar("Data")


class McpEpisode(ToolEpisode[Data]):
    """Answers the policy's calls by the tools of a server, and by its own marked methods.

    The environment returns `server.tools()` from its `tools()`, with `tools_of` the class if that
    has marked methods.

    Args:
        task: the task of the attempt.
        server: the server; the episode has a connection of its own.
        sandbox: runs the server in a session of its own, if it is given; else the server runs
            where the episode does.
        files: the files of that session's folder, by path.
    """

    def __init__(
        self,
        task: Task[Data],
        server: McpServer,
        *,
        sandbox: Sandbox | None = None,
        files: Mapping[str, str | bytes] | None = None,
    ) -> None:
        super().__init__(task)
        self._server, self._sandbox, self._files = server, sandbox, files
        self.session: Session | None = None
        """The session of the sandbox, which `verdict` may look into."""
        self.connection: Connection | None = None
        """The connection with the server, while the episode is open."""

    async def open(self) -> Sequence[Message]:
        """Open the session if there is a sandbox, and connect to the server."""
        server = self._server
        if self._sandbox is not None:
            self.session = await self._sandbox.session(self._files)
            server = server.inside(self.session)
        self.connection = Connection(server)
        await self.connection.open()
        return ()

    def tools(self) -> Sequence[Callable[..., object]]:
        """Return the marked methods and the tools of the server."""
        served = [] if self.connection is None else self.connection.tools()
        return [*super().tools(), *served]

    async def close(self) -> None:
        """Disconnect from the server, and close the session."""
        try:
            if self.connection is not None:
                await self.connection.close()
        finally:
            if self.session is not None:
                await self.session.close()
