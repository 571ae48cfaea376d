"""What a model can do: several attempts at each held-out task, at one or more levels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from grpo_core.settings import SamplingConfig
from grpo_core.summary import Summary, summarize
from grpo_core.train.tasks import eval_keys
from grpo_core.train.trainer import Trainer
from grpo_core.types import Group

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

    tasks: most held-out tasks of each; the same ones at every call. progress: told how many tasks are done, of how many; keep: told
    each group.
    """
    wanted = [
        (source, level, [replace(key, level=level) for key in eval_keys(source, tasks)]) for source in trainer.sources for level in levels
    ]
    total, done, found = sum(len(keys) for *_, keys in wanted), 0, []
    async with trainer.sources:
        for source, level, keys in wanted:
            groups: list[Group[Any]] = []
            step = max(1, CHUNK // samples)
            for start in range(0, len(keys), step):
                if trainer.stops():
                    break
                progress(done, total)
                asked = await trainer.sources.tasks(keys[start : start + step])
                judged, _ = await trainer.judged(asked, attempts=samples, step=0, sampling=sampling)
                for group in judged:
                    keep(group)
                groups += judged
                done += len(asked)
            found.append(summarize(groups, environment=source.name, level=level, samples=samples, parts=source.env.parts))
    progress(done, total)
    return found
