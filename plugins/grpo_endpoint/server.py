"""The endpoint `http`: a server in the event loop of whoever opens it."""

from __future__ import annotations

import asyncio
import logging
import socket
from pathlib import Path

import uvicorn

from grpo_core import GrpoError
from grpo_core.protocol.endpoint import Access, Completer
from grpo_endpoint.app import make_app
from grpo_endpoint.config import HttpConfig
from grpo_endpoint.connection import BoundedConnection
from grpo_endpoint.listening import remove_socket, tcp_socket, unix_socket
from grpo_endpoint.service import Service

_IDLE_SECONDS = 120
"""Connections that were unused for longer are closed. Clients close theirs sooner, so that no
request crosses that."""
_GRACE_SECONDS = 5
"""How long clients may take to read their last answers."""
_LARGEST_HEAD = 65536
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}
"""For servers at all addresses, the one at which clients on this machine find them."""


class HttpEndpoint:
    """An OpenAI-compatible server; see `grpo_core.protocol.endpoint.Endpoint`."""

    Config = HttpConfig

    def __init__(self, config: HttpConfig) -> None:
        self.config = config
        self._service = Service(config)
        self._sockets: list[socket.socket] = []
        self._port = 0
        self._server: uvicorn.Server | None = None
        self._running: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Start to listen; more than one call is harmless.

        Raises:
            UserError: it cannot listen.
        """
        if self._server is not None:
            return
        config = self.config
        self._sockets.append(tcp_socket(config.host, config.port))
        self._port = self._sockets[0].getsockname()[1]
        if config.socket is not None:
            try:
                self._sockets.append(unix_socket(Path(config.socket)))
            except GrpoError:
                self._sockets.pop().close()
                raise
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # the app logs its failures
        connection = BoundedConnection.bounded(
            io_seconds=config.io_seconds, most=config.connections
        )
        settings = uvicorn.Config(
            make_app(self._service),
            interface="asgi3",
            http=connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=_IDLE_SECONDS,
            timeout_graceful_shutdown=_GRACE_SECONDS,
            h11_max_incomplete_event_size=_LARGEST_HEAD,
        )
        settings.load()
        # The parts of Server.serve that take no signals: those belong to the run.
        self._server = uvicorn.Server(settings)
        self._server.lifespan = settings.lifespan_class(settings)
        await self._server.startup(sockets=self._sockets)
        self._running = asyncio.create_task(self._server.main_loop())

    def admit(self, completer: Completer, *, key: str | None = None) -> Access:
        """Register a completer under a new key, and return the access for its clients.

        Args:
            completer: answers the requests that come with the key.
            key: the key; None: a random one; "": requests without a key, or with an unknown one.

        Raises:
            GrpoError: the endpoint is not open, or has a completer with this key.
        """
        if self._server is None:
            raise GrpoError("the endpoint is not open, so it has no address yet; open it first")
        config = self.config
        host = _EVERYWHERE.get(config.host, config.host)
        host = f"[{host}]" if ":" in host else host
        return Access(
            base_url=f"http://{host}:{self._port}/v1",
            key=self._service.admit(completer, key),
            model=config.model,
            socket=config.socket,
        )

    async def dismiss(self, key: str) -> None:
        """Refuse the key from now on, and give up its requests in progress; wait until they end."""
        await self._service.dismiss(key)

    async def close(self) -> None:
        """End all requests and stop listening."""
        if self._server is None or self._running is None:
            return
        server, self._server = self._server, None
        await self._service.close()
        server.should_exit = True
        await self._running
        await server.shutdown(sockets=self._sockets)
        for connection in [*server.server_state.connections]:
            connection.transport.abort()
        if self.config.socket is not None:
            remove_socket(Path(self.config.socket))
