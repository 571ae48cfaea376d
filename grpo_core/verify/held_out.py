"""Choose the held-out tasks of an evaluation: the same ones at every call, for every policy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from grpo_core.protocol.types import TaskKey
from grpo_core.verify.judge.checks import size_of
from grpo_core.verify.sources import Source


@dataclass(frozen=True, slots=True)
class EvalSet:
    """Hold the held-out tasks of one environment at one level."""

    source: Source
    """The environment."""
    level: float
    """The difficulty of the tasks, from 0 to 1."""
    keys: Sequence[TaskKey]
    """The keys of the tasks."""


def eval_sets(sources: Iterable[Source], *, tasks: int, levels: Sequence[float]) -> list[EvalSet]:
    """Return the held-out tasks of each environment at each level.

    Args:
        sources: the environments.
        tasks: most tasks per environment and level.
        levels: if empty, each environment has its own level.
    """
    return [
        EvalSet(source, level, [replace(key, level=level) for key in eval_keys(source, tasks)])
        for source in sources
        for level in levels or [source.level]
    ]


def eval_keys(source: Source, count: int) -> list[TaskKey]:
    """Return at most `count` held-out tasks.

    They are the same for every seed of a run, so that runs can be compared.
    """
    size = size_of(source.env, "eval")
    count = count if size is None else min(size, count)
    return [TaskKey(source.name, "eval", i, 0, source.level) for i in range(count)]
