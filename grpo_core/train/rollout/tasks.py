"""Which tasks a step trains on and an evaluation asks: a pure function of config, step and the environments' sizes."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Mapping

from grpo_core.config.config import RunConfig
from grpo_core.protocol.errors import ConfigError
from grpo_core.protocol.types import TaskKey
from grpo_core.verify.checks import size_of
from grpo_core.verify.sources import Source, Sources

DEFAULT_STEPS = 150


def total_steps(config: RunConfig, sources: Sources, *, batch: int) -> int:
    """Steps of the whole run. batch: tasks of each."""
    for source in sources.trained:
        if size_of(source.env, "train") == 0:
            raise ConfigError(
                f"environment {source.name!r} has no training tasks with these settings; see `grpo env show`"
            )
    for source in sources:
        if config.eval.tasks and size_of(source.env, "eval") == 0:
            raise ConfigError(
                f"environment {source.name!r} has no held-out tasks with these settings; set eval.tasks=0 to do without"
            )
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
            f"epochs={config.epochs:g} needs an environment of finite size; {source.name!r} generates tasks without end, use --steps"
        )
    return math.ceil(config.epochs * size / batch)


def train_keys(
    config: RunConfig, sources: Sources, start: int, count: int, levels: Mapping[str, float]
) -> list[TaskKey]:
    """The keys of the prompts number `start`, `start` + 1, ... of a run: ever new indices, or a new order of all tasks in each epoch where
    their number is finite; none where no environment is trained on. levels: of each environment's tasks now."""
    if not sources.trained:
        return []
    dealt = _dealt(tuple((source.name, source.share) for source in sources.trained), start + count)
    return [
        _train_key(config, sources[name], number, levels[name])
        for name, number in dealt[start : start + count]
    ]


def eval_keys(source: Source, count: int) -> list[TaskKey]:
    """At most `count` held-out tasks: the same for every seed of a run, so that runs can be compared."""
    size = size_of(source.env, "eval")
    count = count if size is None else min(size, count)
    return [TaskKey(source.name, "eval", i, 0, source.level) for i in range(count)]


def counted(sources: Sources) -> list[Source]:
    """Whose held-out reward is that of the run (eval/reward/mean), for stop rules and the best weights: the environments that are trained
    on, or, where all examples come from a file, those that are evaluated."""
    return sources.trained or list(sources)


def draw_number(seed: int, step: int) -> int:
    """What fixes held-out test inputs of a step, 31 bits."""
    return int.from_bytes(hashlib.sha256(f"draw {seed} {step}".encode()).digest()[:4], "big") >> 1


def _train_key(config: RunConfig, source: Source, number: int, level: float) -> TaskKey:
    size = size_of(source.env, "train")
    if size is not None:
        epoch, place = divmod(number, size)
        number = order(source.name, config.seed, epoch, size)[place]
    return TaskKey(source.name, "train", number, config.seed, level)


@functools.lru_cache(maxsize=8)
def order(name: str, seed: int, epoch: int, size: int) -> list[int]:
    """In which the items of a set of finite size come in an epoch."""
    return TaskKey(name, "train", epoch, seed).rng("order").sample(range(size), size)


def _dealt(shares: tuple[tuple[str, float], ...], count: int) -> list[tuple[str, int]]:
    """At least `count` prompts as (environment, its own count): each goes to the one that is furthest behind its share, so that the
    shares hold at every moment and not just on average."""
    dealt, counts = _dealer(shares)
    whole = sum(share for _, share in shares)
    while len(dealt) < count:
        name, _ = max(shares, key=lambda item: item[1] / whole * (len(dealt) + 1) - counts[item[0]])
        dealt.append((name, counts[name]))
        counts[name] += 1
    return dealt


@functools.lru_cache(maxsize=4)
def _dealer(shares: tuple[tuple[str, float], ...]) -> tuple[list[tuple[str, int]], dict[str, int]]:
    """Where dealing has got to: it goes on from step to step instead of beginning anew."""
    return [], {name: 0 for name, _ in shares}
