"""Reach a server by HTTP, and read its answers in bounded memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

from grpo_mcp.guard import MAX_MESSAGE_BYTES

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

_SECONDS, _READ_SECONDS = 30.0, 300.0
"""The times that the SDK gives a server to connect, and to send the next part."""


def web_transport(url: str) -> AbstractAsyncContextManager[TransportStreams]:
    """Return the transport to a server at an address (Streamable HTTP)."""
    return _opened(url)


@asynccontextmanager
async def _opened(url: str) -> AsyncIterator[TransportStreams]:
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    class Bounded(httpx2.AsyncByteStream):
        """The bytes of one response, up to the largest message."""

        def __init__(self, stream: Any) -> None:
            self._stream = stream

        async def __aiter__(self) -> AsyncIterator[bytes]:
            count = 0
            async for part in self._stream:
                count += len(part)
                if count > MAX_MESSAGE_BYTES:
                    raise httpx2.StreamError(f"it has more than {MAX_MESSAGE_BYTES} bytes")
                yield part

        async def aclose(self) -> None:
            await self._stream.aclose()

    async def bound(response: Any) -> None:
        response.headers.pop("content-encoding", None)  # what is unpacked has no bound
        if "event-stream" not in response.headers.get("content-type", ""):
            response.stream = Bounded(response.stream)  # events have a bound of their own

    client = httpx2.AsyncClient(
        headers={"accept-encoding": "identity"},
        timeout=httpx2.Timeout(_SECONDS, read=_READ_SECONDS),
        event_hooks={"response": [bound]},
    )
    async with client, streamable_http_client(url, http_client=client) as streams:
        yield streams
