"""Judged attempts at given tasks, for evaluations of all kinds; nothing is trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from grpo_core.config.settings import SamplingConfig
from grpo_core.protocol.types import Group, TaskKey
from grpo_core.train.run.steps import Steps


async def attempted(
    trainer: Steps,
    wanted: Sequence[Sequence[TaskKey]],
    *,
    samples: int,
    sampling: SamplingConfig,
    chunk: int,
    progress: Callable[[int, int], None],
    audit: bool = True,
    keep: Callable[[Group[Any]], None] = lambda group: None,
) -> list[list[Group[Any]]]:
    """Judged groups of `samples` attempts at the tasks of each list of `wanted`. The caller has opened the trainer's sources.

    chunk: attempts between two looks at whether to stop; after a stop the lists are shorter, or empty. audit: ask those environments for
    it that have one, each process for its share.
    """
    total, done, found = sum(map(len, wanted)), 0, []
    step = max(1, chunk // samples)
    for keys in wanted:
        groups: list[Group[Any]] = []
        for start in range(0, len(keys), step):
            if trainer.stops():
                break
            progress(done, total)
            asked = await trainer.sources.tasks(keys[start : start + step])
            judged, _ = await trainer.judged(asked, attempts=samples, step=0, sampling=sampling)
            if audit:
                judged = trainer.ranks.gathered(
                    await trainer.sources.audited(trainer.ranks.share(judged))
                )
            for group in judged:
                keep(group)
            groups += judged
            done += len(asked)
        found.append(groups)
    if done:
        progress(done, total)
    return found
