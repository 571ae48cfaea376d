"""Measure by how much many verdicts make a process grow, and where the memory was taken.

Python's own allocations are traced, exact to the byte; those of other libraries show in the size of
the process. What a bounded cache holds is no growth, so these caches are emptied before each
measurement.
"""

from __future__ import annotations

import functools
import gc
import re
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from grpo_core.api.verify import resident_mb

_ROUND = 100
"""Verdicts between two measurements."""
_ROUNDS = 4
_MORE_ROUNDS = 12
"""Measurements where memory grew in each of the first ones: a cache may be full in the end."""
_SECONDS = 2.0
"""No further verdict is made after this time, which may end a round."""
_LONGER = 3
"""How many times longer it goes on where the process has grown by more than the next two constants
say."""
_GROWN_MB, _GROWN_MB_EACH = 5.0, 0.05
"""Growth in all, and for each verdict, that may be kept."""
_ENOUGH = 200
"""After fewer verdicts, libraries may still be filling their tables."""
_WARM_UP = 20
"""Verdicts before the first measurement."""
_SUSPICIOUS_BYTES = 1000
"""Bytes for each verdict above which memory may be kept."""
_FILLED = 16
"""A cache with fewer entries holds loaded data and not answers."""


async def measure_growth(judge: Callable[[int], Awaitable[object]]) -> dict[str, Any] | None:
    """Return how many verdicts were made, and how much they left behind.

    Args:
        judge: Makes the verdict of a number; numbers do not repeat.

    Returns:
        The verdicts, the growth of the process in MB, the traced bytes for each verdict in the
        steadiest of the last rounds (None after few verdicts), and the line that took most of them;
        None where the size of the process is not known.
    """
    if not resident_mb():
        return None
    for number in range(_WARM_UP):
        await judge(number)
    tracemalloc.start()
    try:
        return await _measure_rounds(judge)
    finally:
        tracemalloc.stop()


async def _measure_rounds(judge: Callable[[int], Awaitable[object]]) -> dict[str, Any]:
    kept, slopes, number = _traced_bytes(), list[float](), _WARM_UP
    before, started = resident_mb(), time.monotonic()

    def is_late() -> bool:
        grown = resident_mb() - before
        is_growing = grown > max(_GROWN_MB, _GROWN_MB_EACH * (number - _WARM_UP))
        return time.monotonic() - started > _SECONDS * (_LONGER if is_growing else 1)

    while len(slopes) < _ROUNDS or (
        len(slopes) < _MORE_ROUNDS and min(slopes[-3:]) > _SUSPICIOUS_BYTES
    ):
        first = number
        while number < first + _ROUND and not is_late():
            await judge(number)
            number += 1
        if number == first:
            break
        now = _traced_bytes()
        slopes.append((now - kept) / (number - first))
        kept = now
    steady = min(slopes[-3:]) if number - _WARM_UP >= _ENOUGH else None
    return {
        "verdicts": number - _WARM_UP,
        "mb": resident_mb() - before,
        "bytes": steady,
        "where": _largest_allocation() if (steady or 0.0) > _SUSPICIOUS_BYTES else "",
    }


def _traced_bytes() -> int:
    """Return the bytes that Python holds since tracing began, without those of bounded caches."""
    re.purge()
    for cache in gc.get_objects():
        if (
            type(cache) is functools._lru_cache_wrapper
            and cache.cache_info().maxsize is not None
            and cache.cache_info().currsize > _FILLED
        ):
            cache.cache_clear()
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def _largest_allocation() -> str:
    """Return file and line of the code that holds most of the traced memory."""
    statistics = tracemalloc.take_snapshot().statistics("lineno")
    if not statistics:
        return ""
    frame = statistics[0].traceback[0]
    return f"{Path(frame.filename).name}:{frame.lineno}"
