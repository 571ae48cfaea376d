"""Daemon threads for blocking calls. They are used again: to start one takes longer than a call."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue

IDLE = "grpo idle"
"""The name of a thread that waits for a call."""
_Calls = SimpleQueue[tuple[str, Callable[[], object]]]
_idle: list[_Calls] = []
"""The queues of the threads that wait. One whose call never ends is not among them."""


def start_in_thread(call: Callable[[], object], *, name: str) -> None:
    """Begin a call in a thread that does nothing else meanwhile.

    Args:
        call: what to run; it must not raise.
        name: the thread's name during the call.
    """
    try:
        calls = _idle.pop()
    except IndexError:
        calls = SimpleQueue()
        threading.Thread(target=_serve, args=(calls,), name=IDLE, daemon=True).start()
    calls.put((name, call))


def _serve(calls: _Calls) -> None:
    thread = threading.current_thread()
    while True:
        thread.name, call = calls.get()
        call()
        del call  # with what it refers to, which must not live until the next one
        thread.name = IDLE
        _idle.append(calls)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)  # a fork has none of these threads
