"""Choose the tasks that a step trains on and an evaluation uses, and deal them batch by batch.

The choice is a pure function of config, step, levels and the sizes of the environments.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from grpo_core.config.config import RunConfig
from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.types import Task, TaskKey
from grpo_core.train.rollout.askable import Askable
from grpo_core.train.rollout.curriculum import Curriculum
from grpo_core.train.rollout.skips import Skips
from grpo_core.verify.judge.checks import size_of
from grpo_core.verify.sources import Source, Sources
from grpo_core.words.unasked import Unasked, name_unasked

DEFAULT_STEPS = 150
"""Steps of a run that sets neither steps nor epochs."""
EPOCHS = 3
"""Passes over a file of examples if neither steps nor epochs are set."""
LONGEST_SERIES = 256
"""So many generated tasks in a row that cannot be asked end a run."""


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
        self._shares = _shares(sources)
        self.curriculum = Curriculum(
            config.curriculum, {source.name: source.level for source in sources.trained}
        )
        """The present level of each environment's tasks."""
        self.position = 0
        """Number of tasks, or examples, of the steps so far."""
        self.skips = Skips()
        """The tasks that were left out because they cannot be asked."""

    async def first(self, sources: Sources, askable: Askable) -> list[Task[Any]]:
        """Return tasks of a first step, which are tried before anything is written."""
        count = self._config.prompts_per_step
        return await self.deal(sources, 0, count, draw=0, askable=askable, skips=Skips())

    async def at(self, sources: Sources, start: int, count: int, *, step: int) -> list[Task[Any]]:
        """Return the tasks number `start`, `start` + 1, ... of the run, all of which can be asked.

        Raises:
            GrpoError: a task cannot be created.
        """
        keys = train_keys(self._config, sources, start, count, self.curriculum.levels)
        return await sources.tasks(keys, draw_number(self._config.seed, step))

    async def deal(
        self,
        sources: Sources,
        start: int,
        count: int,
        *,
        draw: int,
        askable: Askable,
        skips: Skips | None = None,
    ) -> list[Task[Any]]:
        """Return the tasks number `start`, `start` + 1, ... among those that can be asked.

        Args:
            draw: what fixes their test inputs (see `draw_number`).
            askable: tells which tasks can be asked; for one that cannot, the next task of its
                environment is taken.
            skips: the tasks that are left out, to which further ones are added; those of the run
                if it is left out.

        Raises:
            ConfigError: too many tasks in a row cannot be asked.
            GrpoError: a task cannot be created.
        """
        skips = self.skips if skips is None else skips
        if not self._shares:
            return []
        dealt = _deal_prompts(self._shares, start + count)[start : start + count]
        tasks: dict[TaskKey, Task[Any]] = {}
        while True:
            numbers = [(name, skips.nth(name, place)) for name, place in dealt]
            keys = [
                _train_key(self._config, sources[name], number, self.curriculum.levels[name])
                for name, number in numbers
            ]
            unknown = [
                key
                for key in dict.fromkeys(keys)
                if key not in tasks and key not in askable.unasked
            ]
            for task in await sources.tasks(unknown, draw):
                if askable.examine(task) is None:
                    tasks[task.key] = task
            if all(key in tasks for key in keys):
                return [tasks[key] for key in keys]
            for (name, number), key in dict(zip(numbers, keys, strict=True)).items():
                if key in askable.unasked:
                    skips.add(name, number)
                    askable.replaced(key)
                    _refuse_series(sources[name], skips.series(name), askable.unasked[key])

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint stores, as a dict of JSON values."""
        left_out: dict[str, list[int]] = {}
        if self.skips.total:  # a pipeline may have dealt tasks of steps that are not done
            dealt = _deal_prompts(self._shares, self.position)[: self.position]
            left_out = self.skips.state(Counter(name for name, _ in dealt))
        return {
            "curriculum": self.curriculum.state(),
            "position": self.position,
            "left_out": left_out,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        self.curriculum.restore(state["curriculum"])
        self.position = state["position"]
        self.skips = Skips(state.get("left_out"))  # which older checkpoints do not have


def _shares(sources: Sources) -> tuple[tuple[str, float], ...]:
    """Return the environments that are trained on, with their shares of the prompts."""
    return tuple((source.name, source.share) for source in sources.trained)


def _refuse_series(source: Source, series: int, last: Unasked) -> None:
    """Raise ConfigError if so many tasks in a row cannot be asked that none may follow.

    Args:
        source: their environment.
        series: how many there are.
        last: the last of them.
    """
    size = size_of(source.env, "train")
    if series >= (LONGEST_SERIES if size is None else 2 * size):  # which holds a whole epoch
        raise ConfigError(
            f"none of {series} training tasks in a row of {source.name!r} can be asked, such as "
            f"{name_unasked([last])}"
        )


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
    dealt = _deal_prompts(_shares(sources), start + count)
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
