"""Attempts of a model at an environment's training tasks, level by level, for `grpo_core.report.probe` to judge."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from grpo_core.protocol.types import Group
from grpo_core.report.probe import Sampled
from grpo_core.train.rollout.tasks import train_keys
from grpo_core.train.run.attempts import attempted
from grpo_core.train.trainer import Trainer
from grpo_core.verify.checks import size_of

CHUNK = 64
"""Attempts between two looks at whether to stop."""
TIMED = 64
"""Verdicts of each level that are timed, one after the other, so that none waits for another."""
TIMING_SECONDS = 20.0
"""A slow verifier is timed for so long at each level."""


async def probe(
    trainer: Trainer,
    *,
    tasks: int,
    samples: int,
    levels: Sequence[float],
    progress: Callable[[int, int], None],
) -> list[Sampled]:
    """The first tasks of a run of `trainer` at each level, at most `tasks`, with `samples` attempts each. Ends early, with what there is,
    once a stop was requested. progress: told how many tasks are done, of how many."""
    (source,) = trainer.sources
    size = size_of(source.env, "train")
    count = tasks if size is None else min(tasks, size)
    keys = [
        train_keys(trainer.config, trainer.sources, 0, count, {source.name: level})
        for level in levels
    ]
    async with trainer.sources:
        sampling = trainer.config.sampling
        found = await attempted(
            trainer,
            keys,
            samples=samples,
            sampling=sampling,
            chunk=CHUNK,
            progress=progress,
            audit=False,
        )
        return [
            Sampled(level, groups, await _timed(trainer, groups))
            for level, groups in zip(levels, found, strict=True)
        ]


async def _timed(trainer: Trainer, groups: Sequence[Group[Any]]) -> list[float]:
    """Wall clock of single verdicts as a run gets them, worker process, sandbox or judge included; not from the cache, which the caller
    has switched off."""
    attempts = [(group.task, rollout) for group in groups for rollout in group.rollouts]
    found: list[float] = []
    started = time.perf_counter()
    for task, rollout in attempts[:: max(1, math.ceil(len(attempts) / TIMED))]:
        before = time.perf_counter()
        if trainer.stops() or before - started > TIMING_SECONDS:
            break
        await trainer.sources.verify([task], [[rollout]])
        found.append(time.perf_counter() - before)
    return found
