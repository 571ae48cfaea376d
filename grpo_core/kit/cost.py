"""Measure the time of single verdicts, on ordinary replies and on hostile ones."""

from __future__ import annotations

import time

from grpo_core.kit.result import BrokenPromiseError
from grpo_core.kit.subject import Subject
from grpo_core.kit.texts import LARGE, PATTERNS
from grpo_core.kit.verdicts import ordinary_attempts

_SLOW_SECONDS = 1.0
"""A verdict is slow if it takes longer than this and than `_SLOW_FACTOR` medians."""
_SLOW_FACTOR = 20.0
"""The allowed time of a verdict, relative to the median of ordinary ones."""
_MAX_REPLIES = 40
"""Ordinary replies that are timed."""


async def check_time(subject: Subject) -> str:
    """Check that hostile replies do not make a verdict slow."""
    attempts = ordinary_attempts(subject)[:_MAX_REPLIES]
    await subject.verdicts(attempts[:1])  # so that the start of a worker is not timed
    seconds = sorted([await _verdict_seconds(subject, attempt) for attempt in attempts])
    median = seconds[len(seconds) // 2]
    high = seconds[min(len(seconds) - 1, round(0.99 * len(seconds)))]
    slow = max(_SLOW_SECONDS, _SLOW_FACTOR * median)
    hostile = {
        kind: await _confirmed_seconds(subject, subject.reply_variants(text)[-1], slow)
        for kind, text in {**LARGE, **PATTERNS}.items()
    }
    kind, worst = max(hostile.items(), key=lambda item: item[1])
    summary = (
        f"median {_format_seconds(median)}, 99 % within {_format_seconds(high)}, at worst "
        f"{_format_seconds(worst)} ({kind})"
    )
    if worst > slow:
        raise BrokenPromiseError(
            f"{summary}: an answer can make the verifier slow; limit its length first, and use "
            "grpo_core.extract"
        )
    return summary


async def _confirmed_seconds(subject: Subject, text: str, slow: float) -> float:
    """Return the seconds of a verdict on `text`.

    Where they are more than `slow`, a second task is tried, and the lower time counts: the machine
    may have been busy.
    """
    seconds = await _verdict_seconds(subject, (subject.tasks[0], text))
    return (
        seconds
        if seconds <= slow
        else min(seconds, await _verdict_seconds(subject, (subject.tasks[-1], text)))
    )


async def _verdict_seconds(subject: Subject, attempt: tuple[object, str]) -> float:
    """Return the seconds of one verdict."""
    started = time.perf_counter()
    await subject.verdicts([attempt])  # type: ignore[list-item]
    return time.perf_counter() - started


def _format_seconds(seconds: float) -> str:
    """Return a duration in ms or s."""
    return f"{1000 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"
