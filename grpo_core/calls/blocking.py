"""Let synchronous code wait for asynchronous work, also in a notebook, where a loop is running."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def wait_for(work: Coroutine[Any, Any, T], *, on_interrupt: Callable[[], None] | None = None) -> T:
    """Run `work` to its end and return its result.

    If an event loop is already running, `work` runs in a thread with a loop of its own.

    Args:
        work: the coroutine to run.
        on_interrupt: called at the first Ctrl-C while that thread works. It should make the work
            end soon, because the thread is then waited for. Without it the work is cancelled.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    running, cancel = threading.Event(), list[Callable[[], object]]()

    async def cancellable() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        cancel.append(lambda: loop.call_soon_threadsafe(task.cancel))
        running.set()
        return await work

    with concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="grpo") as thread:
        future = thread.submit(lambda: asyncio.run(cancellable()))
        try:
            return future.result()
        except KeyboardInterrupt:
            if on_interrupt is not None:
                on_interrupt()
                return future.result()
            running.wait()
            with contextlib.suppress(RuntimeError):  # the loop has closed: the work has just ended
                cancel[0]()
            raise
