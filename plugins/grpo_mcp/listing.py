"""Read the list of a server's tools, which has pages, in bounded memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcp import Client

MOST_PAGES = 100
MOST_TOOLS = 1_000
MAX_TOOL_BYTES, MAX_TOOLS_BYTES = 2**18, 2**22
"""Of name, description and schema of one tool, and of all tools."""


class TooManyToolsError(Exception):
    """A list of tools has no end, or is too large."""


@dataclass(frozen=True, slots=True)
class ListedTool:
    """Hold what a server says of a tool."""

    name: str
    description: str
    schema: Mapping[str, Any]


async def all_tools(client: Client) -> list[ListedTool]:
    """Return the tools of all pages.

    Raises:
        TooManyToolsError: there are too many, or the pages go round.
        Exception: whatever the SDK raises where the server fails.
    """
    tools: list[ListedTool] = []
    cursor: str | None = None
    cursors = set[str]()
    size = 0
    while True:
        page = await client.list_tools(cursor=cursor)
        for listed in page.tools:
            text = listed.description or listed.title or ""
            tool = ListedTool(listed.name, text, listed.input_schema)
            size += _size(tool)
            tools.append(tool)
        if len(tools) > MOST_TOOLS or size > MAX_TOOLS_BYTES:
            raise TooManyToolsError(
                f"it has more than {MOST_TOOLS} tools, or {MAX_TOOLS_BYTES} bytes of descriptions"
            )
        cursor = page.next_cursor
        if not cursor:
            return tools
        if cursor in cursors:
            raise TooManyToolsError("it names the same next page twice")
        cursors.add(cursor)
        if len(cursors) >= MOST_PAGES:
            raise TooManyToolsError(f"its tools have more than {MOST_PAGES} pages")


def _size(tool: ListedTool) -> int:
    """Return the bytes of a description.

    Raises:
        TooManyToolsError: they are too many for one tool.
    """
    size = len(tool.name) + len(tool.description) + len(json.dumps(tool.schema))
    if size > MAX_TOOL_BYTES:
        raise TooManyToolsError(
            f"the description of the tool {tool.name[:64]!r} has more than {MAX_TOOL_BYTES} bytes"
        )
    return size
