"""Tell services such as sandboxes about the call into an environment during which they work."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar

from grpo_core.calls.output import Output


class Call:
    """Tracks the time that one call may take, and whether its result may be cached.

    A sandbox or a judge stops the clock while the call waits for its turn, or for infrastructure
    that is unavailable, or for work whose time the service limits itself. Code that stops the clock
    must limit its own wait; nothing else does. The class is thread-safe.

    Args:
        seconds: how long the call may take, without the time during which the clock is stopped.
        outer: the call around this one; stops, resumes and `keep_out_of_caches` apply to it too.
    """

    def __init__(self, seconds: float, outer: Call | None = None) -> None:
        self._lock = threading.Lock()
        self._seconds = seconds
        self._outer = outer
        self._stops = 0
        self.restart()
        self.verifies: bool = outer is not None and outer.verifies
        """Whether a verdict is asked for: the policy has spoken its last word."""
        self.output: Output | None = None if outer is None else outer.output
        """Keeps what is printed during the call; None where nobody asks for it."""
        self.cacheable = True
        """Whether the result may be cached: no service has called `keep_out_of_caches`."""

    def restart(self) -> None:
        """Start the clock again from zero."""
        with self._lock:
            self._started = self._stopped_at = time.monotonic()
            self._stopped_seconds = 0.0

    def inner(self, seconds: float) -> Call:
        """Return a call that is made during this one, and may take `seconds`."""
        return Call(seconds, self)

    def keep_out_of_caches(self) -> None:
        """Record that the result rests on a suspicion, or on how busy the machine was.

        It counts, but the same call may have a different result later.
        """
        self.cacheable = False
        if self._outer is not None:
            self._outer.keep_out_of_caches()

    def note(self, text: str) -> None:
        """Keep a text with the verdict that is asked for, such as the reply of a judge model."""
        if self.output is not None:
            self.output.write_lines(text)

    def left(self) -> float:
        """Return the seconds that are left; negative once the time limit has passed."""
        with self._lock:
            now = self._stopped_at if self._stops else time.monotonic()
            return self._seconds - (now - self._started - self._stopped_seconds)

    def stop(self) -> None:
        """Stop the clock until `resume` has been called once for every `stop`."""
        with self._lock:
            if self._stops == 0:
                self._stopped_at = time.monotonic()
            self._stops += 1
        if self._outer is not None:
            self._outer.stop()

    def resume(self) -> None:
        """Undo one `stop`."""
        with self._lock:
            self._stops -= 1
            if self._stops == 0:
                self._stopped_seconds += time.monotonic() - self._stopped_at
        if self._outer is not None:
            self._outer.resume()

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the clock inside a `with` block."""
        self.stop()
        try:
            yield
        finally:
            self.resume()

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Make `current_call` return this call, also in tasks that the `with` block starts."""
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)


@contextlib.contextmanager
def hearing(output: Output | None = None) -> Iterator[Output]:
    """Keep what an environment prints inside a `with` block.

    Args:
        output: where it is kept; None: in a new one, and in that of the call around.
    """
    call = Call(math.inf, current_call())
    call.output = Output(call.output) if output is None else output
    with call.current():
        yield call.output


class SharedCall(Call):
    """Stand for the first call made during it, so that its owner can stop that call's clock.

    An agent's clock is stopped in this way while the agent waits for the policy.
    """

    def __init__(self) -> None:
        super().__init__(math.inf)
        self._is_taken = False

    def inner(self, seconds: float) -> Call:
        """Return this call itself with the time limit `seconds`, and further ones as others do."""
        if self._is_taken:
            return super().inner(seconds)
        self._is_taken, self._seconds = True, seconds
        self.restart()
        return self


_CURRENT: ContextVar[Call | None] = ContextVar("grpo_call", default=None)


def current_call() -> Call:
    """Return the call that is being served; outside of any call, one without a time limit."""
    return _CURRENT.get() or Call(math.inf)
