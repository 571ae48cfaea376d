"""What a model can do: several attempts at each of some tasks, at one or more levels; nothing is trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from grpo_core.config.settings import SamplingConfig
from grpo_core.protocol.types import Group
from grpo_core.report.summary import Summary, summarize
from grpo_core.train.rollout.tasks import eval_keys
from grpo_core.train.run.attempts import attempted
from grpo_core.train.trainer import Trainer

CHUNK = 256
"""Attempts between two looks at whether to stop."""


async def measure(
    trainer: Trainer,
    *,
    tasks: int,
    samples: int,
    levels: Sequence[float],
    sampling: SamplingConfig,
    progress: Callable[[int, int], None],
    keep: Callable[[Group[Any]], None],
) -> list[Summary]:
    """Every environment of `trainer` at every level; nothing is trained. Ends early, with what there is, once a stop was requested.

    levels: none: each environment at its own. tasks: most held-out tasks of each; the same ones at every call. progress: told how many
    tasks are done, of how many; keep: told each group.
    """
    wanted = [(source, level) for source in trainer.sources for level in levels or [source.level]]
    keys = [
        [replace(key, level=level) for key in eval_keys(source, tasks)] for source, level in wanted
    ]
    async with trainer.sources:
        found = await attempted(
            trainer,
            keys,
            samples=samples,
            sampling=sampling,
            chunk=CHUNK,
            progress=progress,
            keep=keep,
        )
    return [
        summarize(
            groups, environment=source.name, level=level, samples=samples, parts=source.env.parts
        )
        for (source, level), groups in zip(wanted, found, strict=True)
    ]
