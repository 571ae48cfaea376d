"""Turn Ctrl-C, SIGTERM and SIGHUP into a request to stop what a command computes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from grpo_core.calls.stopping import StopRequest
from grpo_core.cli.output import INTERRUPTED

ONE_KEY_PRESS_SECONDS = 1.0
"""The time in seconds within which repeated signals count as one.

Wrappers such as `timeout` or `uv run` forward a Ctrl-C that the terminal has already delivered, so
one key press can arrive as two signals.
"""


@dataclass(slots=True)
class _Stop:
    """Record why a run was asked to stop."""

    status: int = INTERRUPTED
    """The exit status that tells the reason."""

    def ask(self, request: StopRequest, reason: str, status: int) -> None:
        """Make the request to stop; the first one decides the exit status."""
        if not request.is_made:
            self.status = status
        request.make(reason)


@contextmanager
def stoppable(request: StopRequest, how: str) -> Iterator[_Stop]:
    """Make Ctrl-C, SIGTERM and SIGHUP request a stop during the block.

    A second signal ends the process at once, and its workers with it. A SIGHUP that is ignored, as
    under nohup, stays ignored.

    Args:
        request: the request to stop that is made.
        how: how the work will end, for the message.
    """
    signal_times: list[float] = []
    stop = _Stop()

    def handle_signal(number: int, _: object) -> None:
        now = time.monotonic()
        signal_times.append(now)
        if now - signal_times[0] > ONE_KEY_PRESS_SECONDS:
            os._exit(128 + number)
        if len(signal_times) == 1:
            stop.ask(request, f"{signal.Signals(number).name} was received", 128 + number)
            # After SIGHUP the terminal may no longer exist. os.write, because a signal can arrive
            # in the middle of a print, which is not reentrant.
            with suppress(OSError):
                os.write(2, f"\nstopping: {how} (again to leave at once)\n".encode())

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    previous = {number: signal.signal(number, handle_signal) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
