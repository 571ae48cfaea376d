"""Tell of the phases of a preparation, so that nobody waits without knowing for what."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LONG = 1.0
"""Seconds after which a phase is worth a line."""


@contextmanager
def phase(text: str, say: Callable[[str], object]) -> Iterator[None]:
    """Call `say` with a line if the block lasts longer than a second; a short one stays silent.

    Args:
        text: what is being done, such as "measuring memory".
        say: is called from another thread, at most once, and never after the block.
    """
    timer = threading.Timer(LONG, say, (f"{text} ...",))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # a line that is being written ends before the next one begins
