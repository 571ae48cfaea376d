"""Serve many episodes at once in one worker process.

Requests arrive while others are worked on, in one event loop. An episode reaches sandboxes and
judges through the same pipes: the host makes the calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import json
import os
import threading
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import replace
from io import FileIO
from pathlib import Path
from typing import Any

from grpo_core.calls.call import hearing
from grpo_core.calls.deadline import describe
from grpo_core.calls.output import Output
from grpo_core.calls.service_wire import unpack_error
from grpo_core.calls.wire import (
    MAX_REPLY_BYTES,
    decode,
    encode,
    make_reply,
    read_frame,
    write_frame,
)
from grpo_core.protocol.environment import Environment
from grpo_core.protocol.errors import GrpoError
from grpo_core.protocol.types import Task, TaskKey
from grpo_core.verify.episodes.episodes import OpenEpisodes
from grpo_core.verify.judge.checks import BrokenContractError, check_task, check_verdict
from grpo_core.verify.judge.derive import task_with_prompt

_CACHED_TASKS = 64
_PLUMBING = (str(Path(asyncio.__file__).parent), str(Path(__file__).parent))
"""Folders whose code is between an environment's and what it waits for."""
_REQUEST: ContextVar[tuple[str, str] | None] = ContextVar("grpo_request", default=None)
"""Id of the request that is being answered, and id of its episode."""


class HostCalls:
    """Ask the host to call its services; see `grpo_core.verify.workers.borrowed`."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}

    async def call(self, service: str, method: str, arguments: Mapping[str, Any]) -> Any:
        """Return the result of a call, as JSON data.

        Raises:
            GrpoError: no episode is asking.
            ValueError: the arguments are too large for the pipe.
        """
        asking = _REQUEST.get()
        if asking is None:
            raise GrpoError("in a worker process only episodes can use services")
        number, future = next(self._numbers), asyncio.get_running_loop().create_future()
        request, episode = asking
        body = json.dumps(
            {
                "call": number,
                "request": request,
                "episode": episode,
                "service": service,
                "method": method,
                "arguments": arguments,
            }
        ).encode()
        if len(body) > MAX_REPLY_BYTES:  # the host would give up this worker
            raise ValueError(
                f"the arguments of {service}.{method} have {len(body):,} bytes as JSON; from a "
                f"worker process at most {MAX_REPLY_BYTES:,} are sent: write fewer or smaller "
                "files at once"
            )
        self._waiting[number] = future
        self._send(body)
        try:
            return await future
        except asyncio.CancelledError:
            self._send(json.dumps({"drop": number, "episode": episode}).encode())
            raise
        finally:
            del self._waiting[number]

    def settle(self, message: Mapping[str, Any]) -> None:
        """Pass on the result of a call that the host has sent."""
        future = self._waiting.get(message["result"])
        if future is None or future.done():
            return
        if "error" in message:
            future.set_exception(unpack_error(message["error"]))
        else:
            future.set_result(message["value"])


class EpisodeServer:
    """Answer the requests that a pipe brings, until it is closed."""

    def __init__(
        self,
        env: Environment[Any],
        calls: HostCalls,
        send: Callable[[bytes], None],
        memory_mb: Callable[[], float],
    ) -> None:
        """Prepare the answers.

        Args:
            env: the environment.
            calls: asks for services.
            send: sends a message to the host.
            memory_mb: returns the memory of this process.
        """
        self._env, self._calls, self._send, self._memory_mb = env, calls, send, memory_mb
        self._episodes = OpenEpisodes(env, os.environ)  # which holds what workers may see
        self._running: dict[str, asyncio.Task[None]] = {}

        @functools.lru_cache(maxsize=_CACHED_TASKS)
        def derive_task(key: TaskKey) -> Task[Any]:
            return check_task(env.task(key), key)

        self._derive_task = derive_task

    async def serve(self, requests: FileIO) -> None:
        """Answer requests until the pipe is closed; then close all episodes."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def read() -> None:
            with contextlib.suppress(EOFError, OSError, RuntimeError):  # the pipe or loop is closed
                while True:
                    loop.call_soon_threadsafe(self._take, json.loads(read_frame(requests.read)))
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(ended.set)

        threading.Thread(target=read, name="grpo requests", daemon=True).start()
        await ended.wait()
        running = list(self._running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._episodes.close()

    def _take(self, message: Mapping[str, Any]) -> None:
        """Begin to answer a request, cancel one, or pass on the result of a service."""
        if "result" in message:
            self._calls.settle(message)
        elif "cancel" in message:
            if (task := self._running.get(message["cancel"])) is not None:
                task.cancel(_place_of(task))
        else:
            self._running[message["id"]] = asyncio.create_task(self._answer(message))

    async def _answer(self, request: Mapping[str, Any]) -> None:
        """Answer a request; one that was cancelled is answered with where its code was."""
        name, value, error = request["id"], None, None
        self._send(json.dumps({"id": name, "started": True}).encode())
        _REQUEST.set((name, request["session"]))
        output = Output()
        try:
            with hearing(output):
                value = await self._value(request)
        except asyncio.CancelledError as cancelled:
            error = str(cancelled) or "it was cancelled by its own code"
        except BaseException as raised:  # noqa: BLE001 - sys.exit() is reported, too
            error = str(raised) if isinstance(raised, BrokenContractError) else describe(raised)
        del self._running[name]
        said = {"output": output.text} if output.text else {}
        reply = functools.partial(make_reply, name, memory_mb=self._memory_mb(), **said)
        try:
            body = reply(value=value, error=error)
            if len(body) > MAX_REPLY_BYTES:
                raise ValueError(
                    f"it has {len(body):,} bytes, at most {MAX_REPLY_BYTES:,} are sent"
                )
        except (TypeError, ValueError) as sending_error:
            body = reply(error=f"{request['op']}() returned what cannot be sent: {sending_error}")
        self._send(body)

    async def _value(self, request: Mapping[str, Any]) -> Any:
        """Return the checked result of an episode's method, as JSON values."""
        op, episode = request["op"], request["session"]
        if op == "close":
            task: Any = None
        else:
            task = self._derive_task(TaskKey(**request["key"]))
            task = task_with_prompt(self._env, task, request["prompt"])
            task = replace(task, draw=request["draw"])
        arguments = map(decode, request["arguments"])
        result = await self._episodes.call(op, task, episode, *arguments)
        return encode(check_verdict(result, self._env) if op == "verdict" else result)


def sender(replies: FileIO) -> Callable[[bytes], None]:
    """Return a function that writes a message to the pipe, from any thread."""
    lock = threading.Lock()

    def send(body: bytes) -> None:
        with lock:
            write_frame(replies.write, body)

    return send


def _place_of(task: asyncio.Task[None]) -> str:
    """Return where the environment's code waits in a task, as the end of a message."""
    awaitable: Any = task.get_coro()
    place = ""
    while (frame := getattr(awaitable, "cr_frame", None)) is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_PLUMBING):
            place = f"; it was at {file}, line {frame.f_lineno}"
        awaitable = awaitable.cr_await
    return place
