"""Measure what a model can do: several rollouts of some tasks, at one or more levels.

Nothing is trained.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from grpo_core.protocol.sampler import SamplingParams
from grpo_core.protocol.types import Group
from grpo_core.report.summary import Summary, summarize
from grpo_core.train.actor import Actor
from grpo_core.train.rollout.tasks import eval_keys

CHUNK = 256
"""Rollouts between two checks for a requested stop."""


async def measure(
    actor: Actor,
    *,
    tasks: int,
    samples: int,
    levels: Sequence[float],
    params: SamplingParams,
    progress: Callable[[int, int], None],
    on_group: Callable[[Group[Any]], None],
) -> list[Summary]:
    """Measure every environment of `actor` at every level; train nothing.

    A requested stop ends it early, with the results so far.

    Args:
        tasks: most held-out tasks per environment; the same ones at every call.
        samples: rollouts per task.
        levels: if empty, each environment is measured at its own level.
        progress: is called with the number of tasks done and their total.
        on_group: is called with each group.
    """
    source_levels = [
        (source, level) for source in actor.sources for level in levels or [source.level]
    ]
    keys = [
        [replace(key, level=level) for key in eval_keys(source, tasks)]
        for source, level in source_levels
    ]
    async with actor.sources:
        groups_per_level = await actor.evaluate(
            keys,
            samples=samples,
            params=params,
            chunk=CHUNK,
            progress=progress,
            on_group=on_group,
        )
    return [
        summarize(
            groups, environment=source.name, level=level, samples=samples, parts=source.env.parts
        )
        for (source, level), groups in zip(source_levels, groups_per_level, strict=True)
    ]
