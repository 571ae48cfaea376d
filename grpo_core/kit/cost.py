"""How long a verdict takes: one after the other, on everyday answers and on hostile ones."""

from __future__ import annotations

import time

from grpo_core.kit.result import BrokenPromiseError, NotCheckedError
from grpo_core.kit.subject import Subject
from grpo_core.kit.texts import LARGE, PATTERNS
from grpo_core.kit.verdicts import ordinary

_SECONDS = 1.0
_FACTOR = 20.0
_MOST = 40


async def verdict_seconds(subject: Subject) -> str:
    attempts = ordinary(subject)[:_MOST]
    if not attempts:
        raise NotCheckedError("there are no tasks in the train split")
    await subject.verdicts(attempts[:1])  # a worker starts
    usual = sorted([await _timed(subject, attempt) for attempt in attempts])
    median, high = usual[len(usual) // 2], usual[min(len(usual) - 1, round(0.99 * len(usual)))]
    slow = max(_SECONDS, _FACTOR * median)
    hostile = {
        kind: await _confirmed(subject, subject.inside(text)[-1], slow)
        for kind, text in {**LARGE, **PATTERNS}.items()
    }
    kind, worst = max(hostile.items(), key=lambda item: item[1])
    told = f"median {_shown(median)}, 99 % within {_shown(high)}, at worst {_shown(worst)} ({kind})"
    if worst > slow:
        raise BrokenPromiseError(
            f"{told}: an answer can make the verifier slow; limit its length first, and use grpo_core.extract"
        )
    return told


async def _confirmed(subject: Subject, text: str, slow: float) -> float:
    """Seconds; where they are more than `slow`, the fewer of two tasks: the machine may have been busy."""
    seconds = await _timed(subject, (subject.tasks[0], text))
    return (
        seconds
        if seconds <= slow
        else min(seconds, await _timed(subject, (subject.tasks[-1], text)))
    )


async def _timed(subject: Subject, attempt: tuple[object, str]) -> float:
    started = time.perf_counter()
    await subject.verdicts([attempt])  # type: ignore[list-item]
    return time.perf_counter() - started


def _shown(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"
