"""Lets synchronous code, also a notebook's whose event loop is running, wait for asynchronous work."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def wait_for(work: Coroutine[Any, Any, T], *, on_interrupt: Callable[[], None] | None = None) -> T:
    """The result of `work`. Where a loop is running already, it runs in a thread with a loop of its own.

    on_interrupt: called at the first Ctrl-C while that thread works, which is then waited for; it should make the work end soon.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="grpo") as thread:
        future = thread.submit(asyncio.run, work)
        try:
            return future.result()
        except KeyboardInterrupt:
            if on_interrupt is None:
                raise
            on_interrupt()
            return future.result()
