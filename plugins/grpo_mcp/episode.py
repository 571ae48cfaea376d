"""Define the episode that offers the tools of a server beside its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from grpo_core import Message, Task, ToolEpisode
from grpo_core.protocol.types import Data
from grpo_mcp.connection import Connection
from grpo_mcp.server import McpServer


class McpEpisode(ToolEpisode[Data]):
    """Answers the policy's calls by the tools of a server, and by its own marked methods.

    The environment returns `server.tools()` from its `tools()`, with `tools_of` the class if that
    has marked methods.

    Args:
        task: the task of the attempt.
        server: the server; the episode has a connection of its own.
    """

    def __init__(self, task: Task[Data], server: McpServer) -> None:
        super().__init__(task)
        self.connection = Connection(server)
        """The connection, which is open while the episode is."""

    async def open(self) -> Sequence[Message]:
        """Connect to the server."""
        await self.connection.open()
        return ()

    def tools(self) -> Sequence[Callable[..., object]]:
        """Return the marked methods and the tools of the server."""
        return [*super().tools(), *self.connection.tools()]

    async def close(self) -> None:
        """Disconnect from the server."""
        await self.connection.close()
