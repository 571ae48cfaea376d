"""Which tasks a step trains on and an evaluation asks: a pure function of config, step and environment size."""

from __future__ import annotations

import functools
import hashlib
import math
from typing import Any

from grpo_core.config import RunConfig
from grpo_core.environment import Environment
from grpo_core.errors import ConfigError
from grpo_core.types import TaskKey

DEFAULT_STEPS = 150


def total_steps(config: RunConfig, env: Environment[Any]) -> int:
    """Steps of the whole run."""
    if env.size("train") == 0:
        raise ConfigError(f"environment {config.environment!r} has no training tasks with these settings; see `grpo env show`")
    if config.epochs is None:
        return config.steps or DEFAULT_STEPS
    size = env.size("train")
    if size is None:
        raise ConfigError(
            f"epochs={config.epochs:g} needs an environment of finite size; {config.environment!r} generates tasks without end, use --steps"
        )
    return math.ceil(config.epochs * size / config.prompts_per_step)


def train_keys(config: RunConfig, env: Environment[Any], step: int) -> list[TaskKey]:
    """The keys of step 1, 2, ...: ever new indices, or a new order of all tasks in each epoch where their number is finite."""
    size = env.size("train")
    start = (step - 1) * config.prompts_per_step
    numbers = range(start, start + config.prompts_per_step)
    indices = list(numbers) if size is None else [_shuffled(config, size, n) for n in numbers]
    return [TaskKey(config.environment, "train", i, config.seed, config.level) for i in indices]


def eval_keys(config: RunConfig, env: Environment[Any]) -> list[TaskKey]:
    """Held-out tasks: the same for every seed of a run, so that runs can be compared."""
    size = env.size("eval")
    count = config.eval.tasks if size is None else min(size, config.eval.tasks)
    return [TaskKey(config.environment, "eval", i, 0, config.level) for i in range(count)]


def draw_number(seed: int, step: int) -> int:
    """What fixes held-out test inputs of a step, 31 bits."""
    return int.from_bytes(hashlib.sha256(f"draw {seed} {step}".encode()).digest()[:4], "big") >> 1


def _shuffled(config: RunConfig, size: int, number: int) -> int:
    epoch, place = divmod(number, size)
    return _order(config.environment, config.seed, epoch, size)[place]


@functools.lru_cache(maxsize=2)
def _order(environment: str, seed: int, epoch: int, size: int) -> list[int]:
    return TaskKey(environment, "train", epoch, seed).rng("order").sample(range(size), size)
