"""Enforce time limits on calls, and let blocking and asynchronous code wait for each other.

Nothing here waits for code that does not end, and nothing uses signals.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from grpo_core.calls.call import current_call
from grpo_core.calls.isolation import clip, reason
from grpo_core.calls.threads import start_in_thread

T = TypeVar("T")
P = ParamSpec("P")
_GRACE_SECONDS = 0.5
"""How long to wait for work to end after it was cancelled."""
TICK_SECONDS = 0.05
"""The shortest wait before the clock is read again: stopped, it may show almost no time left."""


class DeadlineError(Exception):
    """The time limit was reached.

    This is not a TimeoutError, because environments raise those themselves.
    """


async def within(work: Coroutine[Any, Any, T], seconds: float) -> T:
    """Return the result of `work`; raise DeadlineError if it takes longer than `seconds`.

    `asyncio.wait_for` would wait forever for work that suppresses its cancellation. Services that
    `work` calls may stop the clock while it waits for its turn (see `grpo_core.calls.call`).
    """
    call = current_call().inner(seconds)
    with call.current():
        job = asyncio.ensure_future(_without_exits(work))
    try:
        while not job.done() and (left := call.left()) > 0:
            await asyncio.wait({job}, timeout=max(left, TICK_SECONDS))
    finally:
        if not job.done():
            job.cancel()
    if not job.done():
        await asyncio.wait({job}, timeout=_GRACE_SECONDS)
        # The exception of a job that was given up is retrieved, so that asyncio does not report it.
        job.add_done_callback(lambda job: job.cancelled() or job.exception())
        raise DeadlineError
    if job.cancelled():
        raise RuntimeError("it was cancelled by its own code")
    return job.result()


async def in_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run blocking code in a daemon thread, which has nothing else to do, and return its result.

    Code that hangs there does not keep the program from exiting, as it would in the default
    executor.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(setter: Callable[[Any], None], value: object) -> None:
        if not future.done():
            setter(value)

    def run() -> None:
        try:
            outcome: tuple[Any, object] = future.set_result, function(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001 - sys.exit() must be reported, too
            outcome = future.set_exception, _ordinary_exception(error)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits any longer
            loop.call_soon_threadsafe(settle, *outcome)

    name = f"grpo {getattr(function, '__name__', 'call')}"
    context = contextvars.copy_context()  # so that services know which call they serve
    start_in_thread(functools.partial(context.run, run), name=name)
    return await future


def wait_for(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end and return its result.

    If an event loop is already running, `work` runs in a thread with a loop of its own. A
    KeyboardInterrupt cancels it.
    """
    if not _is_loop_running():
        return asyncio.run(work)
    cancel: concurrent.futures.Future[Callable[[], object]] = concurrent.futures.Future()

    async def cancellable() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        cancel.set_result(lambda: loop.call_soon_threadsafe(task.cancel))
        return await work

    with concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="grpo") as thread:
        future = thread.submit(lambda: asyncio.run(cancellable()))
        try:
            return future.result()
        except KeyboardInterrupt:
            with contextlib.suppress(RuntimeError):  # the loop has closed: the work has just ended
                cancel.result()()
            raise


def _is_loop_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class Slots:
    """Limits how many calls may run at once, in whichever event loop is running.

    A plain Semaphore works only in the first event loop that uses it.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._loop: asyncio.AbstractEventLoop | None = None
        self._semaphore = asyncio.Semaphore(count)

    def here(self) -> asyncio.Semaphore:
        """Return the semaphore of the running event loop; a new loop gets a new one."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._semaphore = loop, asyncio.Semaphore(self._count)
        return self._semaphore


def describe(error: BaseException) -> str:
    """Return one line of limited length: type, message and the line of code that raised."""
    while isinstance(error, _Carrier) and error.__cause__ is not None:
        error = error.__cause__
    return clip(reason(error))


class _Carrier(Exception):
    """Wraps an exception that asyncio rejects or would act on itself; the cause holds it.

    Those are StopIteration, SystemExit, KeyboardInterrupt and CancelledError.
    """


async def _without_exits(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`; wrap the exceptions that would end the whole event loop."""
    try:
        return await work
    except (SystemExit, KeyboardInterrupt) as error:
        raise _ordinary_exception(error) from error


def _ordinary_exception(error: BaseException) -> Exception:
    """Return the exception itself, or a _Carrier of it if asyncio cannot pass it on."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    carrier = _Carrier(type(error).__name__)
    carrier.__cause__ = error
    return carrier
