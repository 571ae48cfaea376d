"""A server that counts, and that fails in several ways when it is asked to."""

import os
import sys
import time

if sys.argv[1:]:
    os._exit(4)

from mcp.server.mcpserver import MCPServer

mcp = MCPServer(name="Frail")
total = 0


@mcp.tool()
def count(by: int) -> int:
    """Add to a total and return it."""
    global total
    total += by
    return total


@mcp.tool()
def crash() -> int:
    """End the server."""
    os._exit(3)


@mcp.tool()
def hang() -> int:
    """Never return."""
    time.sleep(600)
    return 0


@mcp.tool()
def flood() -> str:
    """Return 1 MB."""
    return "x" * 10**6


@mcp.tool()
def fail() -> str:
    """Raise an exception."""
    raise RuntimeError("no luck")


@mcp.tool()
def die_once(path: str) -> str:
    """End the server the first time, as a machine without memory would."""
    if not os.path.exists(path):
        with open(path, "w", encoding="utf-8"):
            pass
        os._exit(9)
    return "alive"


if __name__ == "__main__":
    mcp.run()
