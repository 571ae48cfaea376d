"""Wait for asynchronous code where nothing is asynchronous, as in a synchronous verifier."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Awaitable
from typing import Any

_lock = threading.Lock()
_loops: dict[int, asyncio.AbstractEventLoop] = {}
"""The loop by the id of the process: after a fork, the child needs one of its own."""


def finished(awaitable: Awaitable[Any]) -> Any:
    """Return the result of an awaitable.

    All awaitables of a process run in one event loop, in a thread of its own: what they open once,
    such as the connections of a client, they find again in the next call. Exceptions are raised
    here, and an awaitable is cancelled if the caller is interrupted.
    """
    future = asyncio.run_coroutine_threadsafe(_result(awaitable), _loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


async def _result(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


def _loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of this process, in which awaitables run."""
    with _lock:
        loop = _loops.get(os.getpid())
        if loop is None:
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=_run, args=(loop,), name="grpo-waiting", daemon=True).start()
    return loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Run an event loop for ever.

    Code that exits ends `run_forever`, but must not leave all later callers waiting; its own caller
    gets the exception.
    """
    while True:
        with contextlib.suppress(SystemExit, KeyboardInterrupt):
            loop.run_forever()
