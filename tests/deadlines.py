"""A block that has to end in time, even if it waits for a pipe."""

import contextlib
import signal
from collections.abc import Iterator

SIGNALS = {signal.ITIMER_REAL: signal.SIGALRM, signal.ITIMER_PROF: signal.SIGPROF}


@contextlib.contextmanager
def ends_within(
    seconds: float, error: type[BaseException], *, clock: int = signal.ITIMER_REAL
) -> Iterator[None]:
    """Raise an error of this type in the block when its time by this clock is up."""

    def stop(*_: object) -> None:
        raise error(f"it took more than {seconds:g} s")

    previous = signal.signal(SIGNALS[clock], stop)
    signal.setitimer(clock, seconds)
    try:
        yield
    finally:
        signal.setitimer(clock, 0)
        signal.signal(SIGNALS[clock], previous)
