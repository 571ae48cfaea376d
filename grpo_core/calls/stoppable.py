"""Turn Ctrl-C, SIGTERM and SIGHUP into a request to stop what is computed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from grpo_core.calls.stopping import StopRequest

INTERRUPTED = 130
"""The exit status after Ctrl-C, by the convention of shells: 128 plus the signal's number."""

ONE_KEY_PRESS_SECONDS = 1.0
"""The time in seconds within which repeated signals count as one.

Wrappers such as `timeout` or `uv run` forward a Ctrl-C that the terminal has already delivered, so
one key press can arrive as two signals.
"""

_DEFAULTS = (signal.SIG_DFL, signal.default_int_handler)
"""What handles the signals where nobody has set a handler."""


@dataclass(slots=True)
class Stop:
    """Record why work was asked to stop."""

    status: int = INTERRUPTED
    """The exit status that tells the reason."""
    signal: int | None = None
    """The number of the first signal; None if there was none."""

    def ask(self, request: StopRequest, reason: str, status: int) -> None:
        """Make the request to stop; the first one decides the exit status."""
        if not request.is_made:
            self.status = status
        request.make(reason)


def leave(number: int) -> None:
    """End this process at once, and its workers with it."""
    os._exit(128 + number)


def tell_stderr(text: str) -> None:
    """Write a line to stderr.

    After SIGHUP the terminal may no longer exist. os.write, because a signal can arrive in the
    middle of a print, which is not reentrant.
    """
    with suppress(OSError):
        os.write(2, f"\n{text}\n".encode())


@contextmanager
def stoppable(
    request: StopRequest,
    how: str,
    *,
    again: Callable[[int], None] = leave,
    tell: Callable[[str], None] = tell_stderr,
    replaces: bool = True,
) -> Iterator[Stop]:
    """Make Ctrl-C, SIGTERM and SIGHUP request a stop during the block.

    A SIGHUP that is ignored, as under nohup, stays ignored. Outside the main thread, which alone
    may handle signals, nothing is changed.

    Args:
        request: the request to stop that is made.
        how: how the work will end, for the message.
        again: is called with the number of a second signal.
        tell: is called with the message.
        replaces: whether handlers that somebody else has set are replaced.
    """
    signal_times: list[float] = []
    stop = Stop()

    def handle_signal(number: int, _: object) -> None:
        now = time.monotonic()
        signal_times.append(now)
        if now - signal_times[0] > ONE_KEY_PRESS_SECONDS:
            again(number)
        if len(signal_times) == 1:
            stop.signal = number
            stop.ask(request, f"{signal.Signals(number).name} was received", 128 + number)
            tell(f"stopping: {how} (again to leave at once)")

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    previous = {
        number: signal.signal(number, handle_signal)
        for number in numbers
        if replaces or signal.getsignal(number) in _DEFAULTS
    }
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
