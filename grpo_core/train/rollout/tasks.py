"""Choose the tasks that a step trains on and an evaluation uses, and deal them batch by batch.

The choice is a pure function of config, step, levels and the sizes of the environments.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Mapping
from typing import Any

from grpo_core.config.config import RunConfig
from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.types import Task, TaskKey
from grpo_core.train.rollout.curriculum import Curriculum
from grpo_core.verify.checks import size_of
from grpo_core.verify.sources import Source, Sources

DEFAULT_STEPS = 150
"""Steps of a run that sets neither steps nor epochs."""
EPOCHS = 3
"""Passes over a file of examples if neither steps nor epochs are set."""


def total_steps(config: RunConfig, sources: Sources, *, batch: int, examples: int = 0) -> int:
    """Return the number of steps of the whole run.

    Args:
        batch: tasks or examples per step.
        examples: number of examples in the file that is trained on; 0 without a file.

    Raises:
        ConfigError: an environment lacks the tasks that the config asks for, or epochs have no
            meaning for it.
    """
    for source in sources.trained:
        if size_of(source.env, "train") == 0:
            raise ConfigError(
                f"environment {source.name!r} has no training tasks with these settings; see "
                "`grpo env show`"
            )
    for source in sources:
        if config.eval.tasks and size_of(source.env, "eval") == 0:
            raise ConfigError(
                f"environment {source.name!r} has no held-out tasks with these settings; set "
                "eval.tasks=0 to skip evaluations"
            )
    if examples and config.steps is None:
        return math.ceil((config.epochs or EPOCHS) * examples / batch)
    if config.epochs is None:
        return config.steps or DEFAULT_STEPS
    if len(sources.trained) > 1:
        raise ConfigError(
            f"epochs={config.epochs:g} is for one environment, not for a mixture; use --steps"
        )
    (source,) = sources.trained
    size = size_of(source.env, "train")
    if size is None:
        raise ConfigError(
            f"epochs={config.epochs:g} needs an environment of finite size; {source.name!r} "
            "generates tasks without end, use --steps"
        )
    return math.ceil(config.epochs * size / batch)


class TaskStream:
    """Deal the training tasks of a run.

    Args:
        config: the configuration of the run.
        sources: its environments.
    """

    def __init__(self, config: RunConfig, sources: Sources) -> None:
        self._config = config
        self.curriculum = Curriculum(
            config.curriculum, {source.name: source.level for source in sources.trained}
        )
        """The present level of each environment's tasks."""
        self.position = 0
        """Number of tasks, or examples, of the steps so far."""

    def first_keys(self, sources: Sources) -> list[TaskKey]:
        """Return the keys of the first step's tasks, and of one task of each environment.

        They are tried before anything is written.
        """
        config = self._config
        keys = train_keys(config, sources, 0, config.prompts_per_step, self.curriculum.levels)
        samples = [
            TaskKey(source.name, "train" if source.share else "eval", 0, config.seed, source.level)
            for source in sources
        ]
        return list(dict.fromkeys([*keys, *samples]))

    async def at(self, sources: Sources, start: int, count: int, *, step: int) -> list[Task[Any]]:
        """Return the tasks number `start`, `start` + 1, ... of the run."""
        keys = train_keys(self._config, sources, start, count, self.curriculum.levels)
        return await sources.tasks(keys, draw_number(self._config.seed, step))

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint stores, as a dict of JSON values."""
        return {"curriculum": self.curriculum.state(), "position": self.position}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        self.curriculum.restore(state["curriculum"])
        self.position = state["position"]


def train_keys(
    config: RunConfig, sources: Sources, start: int, count: int, levels: Mapping[str, float]
) -> list[TaskKey]:
    """Return the keys of the prompts number `start`, `start` + 1, ... of a run.

    Indices never repeat; where an environment has a finite number of tasks, each epoch has all of
    them in a new order. The list is empty if no environment is trained on.

    Args:
        levels: the present level of each environment's tasks.
    """
    if not sources.trained:
        return []
    dealt = _deal_prompts(
        tuple((source.name, source.share) for source in sources.trained), start + count
    )
    return [
        _train_key(config, sources[name], number, levels[name])
        for name, number in dealt[start : start + count]
    ]


def counted_sources(sources: Sources) -> list[Source]:
    """Return the sources whose held-out reward is that of the run (eval/reward/mean).

    Stop rules and the best weights follow this reward. The sources are the environments that are
    trained on, or, where all examples come from a file, those that are evaluated.
    """
    return sources.trained or list(sources)


def draw_number(seed: int, step: int) -> int:
    """Return the 31-bit number that fixes the held-out test inputs of a step."""
    return int.from_bytes(hashlib.sha256(f"draw {seed} {step}".encode()).digest()[:4], "big") >> 1


def _train_key(config: RunConfig, source: Source, number: int, level: float) -> TaskKey:
    size = size_of(source.env, "train")
    if size is not None:
        epoch, place = divmod(number, size)
        number = epoch_order(source.name, config.seed, epoch, size)[place]
    return TaskKey(source.name, "train", number, config.seed, level)


@functools.lru_cache(maxsize=8)
def epoch_order(name: str, seed: int, epoch: int, size: int) -> list[int]:
    """Return the order in which the items of a finite set come in an epoch."""
    return TaskKey(name, "train", epoch, seed).rng("order").sample(range(size), size)


def _deal_prompts(shares: tuple[tuple[str, float], ...], count: int) -> list[tuple[str, int]]:
    """Return at least `count` prompts as (environment, number within that environment).

    Each prompt goes to the environment that is furthest behind its share, so that the shares hold
    at every moment and not just on average.
    """
    dealt, counts = _deal_state(shares)
    total_share = sum(share for _, share in shares)
    while len(dealt) < count:
        name, _ = max(
            shares, key=lambda item: item[1] / total_share * (len(dealt) + 1) - counts[item[0]]
        )
        dealt.append((name, counts[name]))
        counts[name] += 1
    return dealt


@functools.lru_cache(maxsize=4)
def _deal_state(
    shares: tuple[tuple[str, float], ...],
) -> tuple[list[tuple[str, int]], dict[str, int]]:
    """Return the mutable state of dealing: the prompts dealt so far and the count per environment.

    It is cached, so that dealing continues from step to step instead of beginning anew.
    """
    return [], {name: 0 for name, _ in shares}
