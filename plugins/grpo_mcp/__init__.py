"""Tools of a server of the Model Context Protocol (MCP), for episodes."""

from grpo_mcp.connection import Connection, McpError
from grpo_mcp.episode import McpEpisode
from grpo_mcp.jailed import session_transport
from grpo_mcp.server import McpServer

__all__ = ["Connection", "McpEpisode", "McpError", "McpServer", "session_transport"]
