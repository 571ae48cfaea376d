"""The settings of the endpoint `http`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from grpo_core import ConfigError, Harmless

_MAX_PORT = 65535


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """Settings of the endpoint `http`."""

    host: str = "127.0.0.1"
    """Address at which the server listens; 127.0.0.1: programs on this machine alone reach it."""
    hosts: tuple[str, ...] = ()
    """Further names by which clients reach the server, such as that of a proxy before it; requests
    that name another host are refused, since web pages could send them."""
    port: int = 0
    """Port at which it listens; 0: a free one."""
    socket: str | None = None
    """Path of a Unix socket at which it listens, too; unset: none."""
    model: Annotated[str, Harmless] = "policy"
    """Name of the model for its clients."""
    requests: int = 512
    """Most requests that are answered at a time; further ones wait in the queue."""
    requests_per_key: int = 256
    """Most requests of one key that are answered at a time."""
    queue: int = 1024
    """Most requests that wait; further ones get status 429 and are to come again."""
    request_seconds: float = 600.0
    """How long the answer to a request may take, the queue included."""
    max_choices: int = 128
    """Most completions of one request: `n` times the number of its prompts."""
    body_mb: float = 16.0
    """Largest body of a request in MiB."""
    connections: int = 2048
    """Most open connections; further ones are closed at once."""
    io_seconds: float = 30.0
    """How long a client may take to send a request, and how long it may not read an answer."""
    keep_alive_seconds: float = 5.0
    """Pause between the comments that keep a streamed answer open while it is not there yet."""

    def __post_init__(self) -> None:
        counts = (self.requests, self.requests_per_key, self.max_choices, self.connections)
        times = (self.request_seconds, self.io_seconds, self.keep_alive_seconds, self.body_mb)
        for is_valid, needed in (
            (0 <= self.port <= _MAX_PORT, f"a port from 0 to {_MAX_PORT}"),
            (min(counts) >= 1, "limits of at least 1"),
            (self.queue >= 0, "a queue of 0 or more"),
            (min(times) > 0, "times and sizes above 0"),
            (self.model, "the name of a model"),
        ):
            if not is_valid:
                raise ConfigError(f"the endpoint 'http' needs {needed}")
