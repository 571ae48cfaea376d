"""An endpoint with completers behind it, in a thread with an event loop of its own, for tests of clients."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import openai

from grpo_core import Message
from grpo_core.protocol.endpoint import (
    Access,
    Choice,
    Completer,
    CompletionAnswer,
    CompletionRequest,
)
from grpo_endpoint.config import HttpConfig
from grpo_endpoint.server import HttpEndpoint

CHAT = "/v1/chat/completions"
HELLO = {"model": "policy", "messages": [{"role": "user", "content": "Hello"}]}


def answer(text: str, count: int = 1) -> CompletionAnswer:
    """An answer of this text, with a token for each character."""
    choice = Choice(
        text=text,
        message=Message("assistant", text),
        finish="stop",
        token_ids=tuple(map(ord, text)),
        tokens=tuple(text),
        logprobs=(-0.5,) * len(text),
    )
    return CompletionAnswer((choice,) * count, prompt_tokens=3)


def until(happened: Callable[[], object], seconds: float = 20) -> None:
    """Wait until something has happened."""
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


class Fake:
    """A completer that does what a function says, and keeps what it was asked and what was given up."""

    def __init__(
        self, act: Callable[[CompletionRequest], Any] = lambda request: answer("Hi")
    ) -> None:
        self.act = act
        self.asked: list[CompletionRequest] = []
        self.given_up = 0
        self.running = self.most_running = 0

    async def complete(self, request: CompletionRequest) -> CompletionAnswer:
        self.asked.append(request)
        self.running += 1
        self.most_running = max(self.running, self.most_running)
        try:
            found = self.act(request)
            return await found if asyncio.iscoroutine(found) else found
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        finally:
            self.running -= 1


class Served:
    """The endpoint while it is open."""

    def __init__(self, loop: asyncio.AbstractEventLoop, endpoint: HttpEndpoint) -> None:
        self.loop, self.endpoint = loop, endpoint

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run `work` in the loop of the endpoint."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def admit(self, completer: Completer, key: str | None = None) -> Access:
        async def admitted() -> Access:
            return self.endpoint.admit(completer, key=key)

        found: Access = self.run(admitted())
        return found

    def http(self, access: Access, **headers: str) -> httpx.Client:
        """A client without opinions about what is sent."""
        base = access.base_url.removesuffix("/v1")
        given = {"authorization": f"Bearer {access.key}", **headers}
        return httpx.Client(base_url=base, headers=given, timeout=30)


def raw(access: Access) -> socket.socket:
    """A connection on which a test writes bytes of its own."""
    host, _, port = access.base_url.removeprefix("http://").removesuffix("/v1").partition(":")
    connection = socket.create_connection((host, int(port)), timeout=20)
    connection.settimeout(20)
    return connection


def post(access: Access, body: bytes, *headers: str) -> bytes:
    """A request as bytes."""
    lines = [
        f"POST {CHAT} HTTP/1.1",
        "Host: localhost",
        f"Authorization: Bearer {access.key}",
        *(headers or (f"Content-Length: {len(body)}",)),
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def openai_client(access: Access, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=access.base_url, api_key=access.key or "none", max_retries=0, timeout=30, **options
    )


@contextmanager
def served(**settings: Any) -> Iterator[Served]:
    """Open an endpoint with these settings, and close it at the end."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    endpoint = HttpEndpoint(HttpConfig(**settings))
    found = Served(loop, endpoint)
    try:
        found.run(endpoint.open())
        try:
            yield found
        finally:
            found.run(endpoint.close())
        found.run(_settled())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _settled() -> None:
    """Nothing of the endpoint is left in its loop."""
    for _ in range(50):
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if not others:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"left: {others}")
