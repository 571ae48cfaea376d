"""Write answers to clients, whole or as streams, and notice when a client is gone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Generic, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from grpo_endpoint.errors import ApiError
from grpo_endpoint.requests import Delta

Answer = TypeVar("Answer")
_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
]
_WAITING = b": waiting\n\n"
_DONE = b"data: [DONE]\n\n"


class JsonResponse(Response):
    """Hold JSON in ASCII, so that each text has bytes, also half of a surrogate pair."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the body."""
        return json.dumps(content).encode("ascii")


def error_response(error: ApiError) -> Response:
    """Return the answer for an error."""
    return JsonResponse(error.body, error.status, error.headers)


@dataclass(frozen=True, slots=True)
class PendingResponse(Generic[Answer]):
    """Answer with the result of a task; if the client is gone, the task is given up."""

    work: asyncio.Task[Answer]
    """The task. An ApiError of it is the answer."""
    why_given_up: Callable[[], ApiError]
    """Returns the error if somebody else cancelled the task."""
    body: Callable[[Answer], Any]
    """Returns the body for a result, as JSON data."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer when it is there."""
        gone = asyncio.create_task(_disconnected(receive))
        try:
            await self._answer(gone, scope, receive, send)
        finally:
            gone.cancel()
            self.work.cancel()
            await asyncio.wait({gone, self.work})

    async def _answer(
        self, gone: asyncio.Task[None], scope: Scope, receive: Receive, send: Send
    ) -> None:
        await asyncio.wait({gone, self.work}, return_when=asyncio.FIRST_COMPLETED)
        if self.work.done():
            try:
                response: Response = JsonResponse(self.body(self._result()))
            except ApiError as error:
                response = error_response(error)
            await response(scope, receive, send)

    def _result(self) -> Answer:
        """Return the result of the task, which has ended.

        Raises:
            ApiError: it has none.
        """
        if self.work.cancelled():
            raise self.why_given_up()
        return self.work.result()


class News:
    """Hands deltas from who makes them to who sends them, both in one event loop."""

    def __init__(self) -> None:
        self._deltas: list[Delta] = []
        self._changed = asyncio.Event()

    def add(self, delta: Delta) -> None:
        """Add a delta."""
        self._deltas.append(delta)
        self._changed.set()

    def wake(self, _: object = None) -> None:
        """End a wait, as something else has happened."""
        self._changed.set()

    async def wait(self, seconds: float) -> bool:
        """Return whether there is something new within some seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return False
        self._changed.clear()
        return True

    def take(self) -> list[Delta]:
        """Return the deltas since the last call."""
        deltas, self._deltas = self._deltas, []
        return deltas


@dataclass(frozen=True, slots=True)
class PendingStream(PendingResponse[Answer]):
    """Answer with a stream of events: those of deltas as they come, and of the rest at the end.

    Where nothing comes for a while, comments keep the connection open. An error before the first
    event or comment has its own status.
    """

    body: Callable[[Answer], Iterable[Mapping[str, Any]]]
    """Returns the events for a result that follow those of the deltas."""
    pause_seconds: float
    """Pause before each comment."""
    news: News
    """Has the deltas."""
    events: Callable[[Delta], Iterable[Mapping[str, Any]]]
    """Returns the events for a delta."""

    async def _answer(
        self, gone: asyncio.Task[None], scope: Scope, receive: Receive, send: Send
    ) -> None:
        is_started = is_done = False
        for task in (gone, self.work):
            task.add_done_callback(self.news.wake)
        while not is_done:
            is_quiet = not await self.news.wait(self.pause_seconds)
            is_done = self.work.done()  # before the deltas are taken, so that none is left
            if gone.done() and not is_done:
                return
            for event in chain.from_iterable(map(self.events, self.news.take())):
                await _send_event(send, event, start=not is_started)
                is_started = True
            if is_quiet and not is_done:
                await _send_part(send, _WAITING, start=not is_started)
                is_started = True
        try:
            events = self.body(self._result())
        except ApiError as error:
            if not is_started:
                await error_response(error)(scope, receive, send)
                return
            events = [error.body]
        for event in events:
            await _send_event(send, event, start=not is_started)
            is_started = True
        await send({"type": "http.response.body", "body": _DONE, "more_body": False})


async def _send_event(send: Send, event: Mapping[str, Any], *, start: bool) -> None:
    """Send an event of a stream, with its headers if it is the first."""
    await _send_part(send, f"data: {json.dumps(event)}\n\n".encode(), start=start)


async def _send_part(send: Send, part: bytes, *, start: bool) -> None:
    """Send a part of a stream, with its headers if it is the first."""
    if start:
        await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
    await send({"type": "http.response.body", "body": part, "more_body": True})


async def _disconnected(receive: Receive) -> None:
    """Wait until the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
