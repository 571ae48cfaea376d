"""Sample an environment's training tasks level by level, for `grpo_core.report.probe` to judge."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from grpo_core.protocol.types import Group
from grpo_core.report.probe import Sampled
from grpo_core.train.actor import Actor
from grpo_core.train.rollout.tasks import train_keys
from grpo_core.verify.checks import size_of

CHUNK = 64
"""Rollouts between two checks for a requested stop."""
TIMED = 64
"""Verdicts timed at each level, one after the other, so that none waits for another."""
TIMING_SECONDS = 20.0
"""Most seconds that verdicts are timed at each level; a slow verifier gets fewer."""


async def probe(
    actor: Actor,
    *,
    tasks: int,
    samples: int,
    levels: Sequence[float],
    progress: Callable[[int, int], None],
) -> list[Sampled]:
    """Sample the first training tasks of a run of `actor` at each level.

    A requested stop ends it early, with the results so far.

    Args:
        tasks: most tasks per level.
        samples: rollouts per task.
        progress: is called with the number of tasks done and their total.
    """
    (source,) = actor.sources
    size = size_of(source.env, "train")
    count = tasks if size is None else min(tasks, size)
    keys = [
        train_keys(actor.config, actor.sources, 0, count, {source.name: level}) for level in levels
    ]
    async with actor.sources:
        groups_per_level = await actor.evaluate(
            keys,
            samples=samples,
            params=actor.config.sampling.params(),
            chunk=CHUNK,
            progress=progress,
            audit=False,
        )
        return [
            Sampled(level, groups, await _verdict_seconds(actor, groups))
            for level, groups in zip(levels, groups_per_level, strict=True)
        ]


async def _verdict_seconds(actor: Actor, groups: Sequence[Group[Any]]) -> list[float]:
    """Return the wall-clock seconds of single verdicts as a run gets them.

    They include worker process, sandbox and judge, but not the cache, which the caller has switched
    off.
    """
    attempts = [(group.task, rollout) for group in groups for rollout in group.rollouts]
    seconds: list[float] = []
    started = time.perf_counter()
    for task, rollout in attempts[:: max(1, math.ceil(len(attempts) / TIMED))]:
        before = time.perf_counter()
        if actor.stops() or before - started > TIMING_SECONDS:
            break
        await actor.sources.verify([task], [[rollout]])
        seconds.append(time.perf_counter() - before)
    return seconds
