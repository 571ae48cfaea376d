"""Deadlines that are kept: nothing here waits for code that does not end, and nothing uses signals."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from grpo_core.calls.call import Call, enclosing_call
from grpo_core.calls.isolation import clip, reason

T = TypeVar("T")
P = ParamSpec("P")
_GRACE_SECONDS = 0.5
_TICK_SECONDS = 0.05  # while the clock is stopped, the time that is left may be next to nothing


class DeadlineError(Exception):
    """The deadline passed. Not a TimeoutError: environments raise those themselves."""


async def within(work: Coroutine[Any, Any, T], seconds: float) -> T:
    """Return the result of `work`, or raise DeadlineError.

    `asyncio.wait_for` would wait for ever for work that swallows its cancellation. Services that
    `work` calls may stop the clock while it waits for its turn (see `grpo_core.calls.call`).
    """
    call = Call(seconds, enclosing_call())
    with call.current():
        job = asyncio.ensure_future(_contained(work))
    try:
        while not job.done() and (left := call.left()) > 0:
            await asyncio.wait({job}, timeout=max(left, _TICK_SECONDS))
    finally:
        if not job.done():
            job.cancel()
    if not job.done():
        await asyncio.wait({job}, timeout=_GRACE_SECONDS)
        job.add_done_callback(_forget)
        raise DeadlineError
    if job.cancelled():
        raise RuntimeError("it was cancelled from within")
    return job.result()


async def in_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run blocking code in a daemon thread of its own: unlike the default executor, one that hangs never blocks the exit."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(setter: Callable[[Any], None], value: object) -> None:
        if not future.done():
            setter(value)

    def run() -> None:
        setter: Callable[[Any], None] = future.set_result
        value: object
        try:
            value = function(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001 - sys.exit() in an environment must not end in silence
            setter, value = future.set_exception, _portable(error)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, setter, value)

    name = f"grpo {getattr(function, '__name__', 'call')}"
    context = contextvars.copy_context()  # services are to know which call they serve
    threading.Thread(target=context.run, args=(run,), name=name, daemon=True).start()
    return await future


class Slots:
    """How many calls may be under way at once, in whichever event loop is running: a plain Semaphore belongs to its first loop for ever."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._loop: asyncio.AbstractEventLoop | None = None
        self._semaphore = asyncio.Semaphore(count)

    def here(self) -> asyncio.Semaphore:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._semaphore = loop, asyncio.Semaphore(self._count)
        return self._semaphore


def describe(error: BaseException) -> str:
    """One bounded line for a log: type, message and the line of code that raised."""
    while isinstance(error, _Carrier) and error.__cause__ is not None:
        error = error.__cause__
    return clip(reason(error))


class _Carrier(Exception):
    """Brings out of a thread what asyncio refuses or takes as its own: StopIteration, SystemExit, KeyboardInterrupt, CancelledError."""


async def _contained(work: Coroutine[Any, Any, T]) -> T:
    try:
        return await work
    except (SystemExit, KeyboardInterrupt) as error:  # asyncio would end the whole event loop
        raise _portable(error) from error


def _portable(error: BaseException) -> Exception:
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    carrier = _Carrier(type(error).__name__)
    carrier.__cause__ = error
    return carrier


def _forget(job: asyncio.Future[Any]) -> None:
    if not job.cancelled():
        job.exception()  # retrieved, so that asyncio does not report it later
