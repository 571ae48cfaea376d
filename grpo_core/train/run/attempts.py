"""Sample and judge rollouts of given tasks, for evaluations of all kinds; train nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from grpo_core.config.settings import SamplingConfig
from grpo_core.protocol.types import Group, TaskKey
from grpo_core.train.run.steps import Steps


async def sample_and_judge(
    trainer: Steps,
    key_lists: Sequence[Sequence[TaskKey]],
    *,
    samples: int,
    sampling: SamplingConfig,
    chunk: int,
    progress: Callable[[int, int], None],
    audit: bool = True,
    keep: Callable[[Group[Any]], None] = lambda group: None,
) -> list[list[Group[Any]]]:
    """Return judged groups for each list of task keys; the caller has opened the trainer's sources.

    After a requested stop the lists are shorter, or empty.

    Args:
        key_lists: the tasks, in lists that are returned separately.
        samples: rollouts per task.
        chunk: rollouts between two checks for a requested stop.
        progress: is called with the number of tasks done and their total.
        audit: also ask the audit judge of those environments that have one; each process audits its
            share.
        keep: is called with each group.
    """
    total, done, groups_per_list = sum(map(len, key_lists)), 0, []
    tasks_per_chunk = max(1, chunk // samples)
    for keys in key_lists:
        groups: list[Group[Any]] = []
        for start in range(0, len(keys), tasks_per_chunk):
            if trainer.stops():
                break
            progress(done, total)
            tasks_P = await trainer.sources.tasks(keys[start : start + tasks_per_chunk])
            judged, _ = await trainer.judged(tasks_P, attempts=samples, step=0, sampling=sampling)
            if audit:
                judged = trainer.ranks.gathered(
                    await trainer.sources.audited(trainer.ranks.share(judged))
                )
            for group in judged:
                keep(group)
            groups += judged
            done += len(tasks_P)
        groups_per_list.append(groups)
    if done:
        progress(done, total)
    return groups_per_list
