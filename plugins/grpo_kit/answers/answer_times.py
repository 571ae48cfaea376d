"""Check that no answer takes a verifier much longer than others."""

from __future__ import annotations

import time

from grpo_core.words.hostile_texts import (
    LARGE,
    PATTERNS,
)
from grpo_kit.answers.hostile_answers import MAX_REPLIES
from grpo_kit.answers.ordinary import ordinary_attempts
from grpo_kit.check import check
from grpo_kit.result import BrokenPromiseError
from grpo_kit.subject import Attempt, Subject

_SLOW_SECONDS = 1.0
"""A verdict is slow if it takes longer than this and than `_SLOW_FACTOR` medians."""

_USUAL_SECONDS = 0.05
"""An ordinary verdict that needs no service takes no longer than this, or than the next share."""

_USUAL_SHARE = 0.025
"""The usual time of a verdict, as a share of the environment's timeout."""

_SLOW_FACTOR = 20.0
"""The allowed time of a verdict, relative to the median of ordinary ones."""


@check("cost.time", "warning", asks="Are verdicts fast, also on hostile replies?")
async def check_time(subject: Subject) -> str:
    """Check that hostile replies do not make a verdict slow."""
    attempts = ordinary_attempts(subject)[:MAX_REPLIES]
    await subject.verdicts(attempts[:1])  # so that the start of a worker is not timed
    seconds = sorted([await _verdict_seconds(subject, attempt) for attempt in attempts])
    median = seconds[len(seconds) // 2]
    usual = max(_USUAL_SECONDS, _USUAL_SHARE * subject.env.timeout_seconds)
    if median > usual and not subject.services:
        raise BrokenPromiseError(
            f"half of all ordinary verdicts take more than {_format_seconds(median)}, and a step "
            f"needs hundreds: prepare once what they share, and do not wait in a verdict; where "
            "they are slow by their nature, raise timeout_seconds"
        )
    high = seconds[min(len(seconds) - 1, round(0.99 * len(seconds)))]
    slow = max(_SLOW_SECONDS, _SLOW_FACTOR * median)
    hostile = {
        kind: await _confirmed_seconds(subject, subject.answers.reply_variants(text)[-1], slow)
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


async def _verdict_seconds(subject: Subject, attempt: Attempt) -> float:
    """Return the seconds of one verdict; the run of an agent is not a part of it."""
    task, text = attempt
    rollout = await subject.rollout(task, text) if subject.has_agents else None
    started = time.perf_counter()
    if rollout is None:
        await subject.verdicts([attempt])
    else:
        await subject.verifier.verify([task], [[rollout]])
    return time.perf_counter() - started


def _format_seconds(seconds: float) -> str:
    """Return a duration in ms or s."""
    return f"{1000 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"
