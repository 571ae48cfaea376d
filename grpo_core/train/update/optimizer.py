"""Build optimizers and learning-rate schedules by name, and restore their state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from grpo_core.config.settings import OptimizerConfig, ScheduleConfig
from grpo_core.protocol.errors import MissingExtraError


def build_optimizer(parameters: Sequence[Tensor], config: OptimizerConfig) -> torch.optim.Optimizer:
    """Build the configured optimizer; its rate has been set or chosen.

    Raises:
        MissingExtraError: adamw8bit is configured and bitsandbytes is not installed.
    """
    assert config.lr is not None, "optimizer.lr is unset; take config.sizes.with_defaults"
    settings: dict[str, Any] = {
        "lr": config.lr,
        "betas": config.betas,
        "weight_decay": config.weight_decay,
    }
    if config.name == "adamw":
        return torch.optim.AdamW(parameters, **settings)
    try:
        import bitsandbytes
    except ImportError:
        raise MissingExtraError(
            "optimizer.name='adamw8bit'", "train", package="bitsandbytes"
        ) from None
    return cast("torch.optim.Optimizer", bitsandbytes.optim.AdamW8bit(parameters, **settings))


def rate(done: int, total: int, config: ScheduleConfig) -> float:
    """Return the learning rate, as a share of its peak, for the step after `done` of `total`.

    The first step of a warm-up is above 0.
    """
    warmup = config.warmup * total if config.warmup < 1 else config.warmup
    if done + 1 <= warmup:
        return (done + 1) / (warmup + 1)
    # A warm-up may end between two steps.
    progress = min(1.0, max(0.0, done - warmup) / max(1.0, total - warmup))
    if config.name == "linear":
        return 1 - progress
    if config.name == "cosine":
        return (1 + math.cos(math.pi * progress)) / 2
    return 1.0


def build_schedule(
    optimizer: torch.optim.Optimizer, config: ScheduleConfig, *, total: int
) -> torch.optim.lr_scheduler.LambdaLR:
    """Build the schedule of the learning rate over `total` optimizer steps."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: rate(done, total, config))


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Restore the optimizer's running means from `state`.

    Learning rate, weight decay and all other settings stay as they are configured now.
    """
    configured = [
        {name: value for name, value in group.items() if name != "params"}
        for group in optimizer.param_groups
    ]
    optimizer.load_state_dict(state)
    for group, settings in zip(optimizer.param_groups, configured, strict=True):
        group.update(settings)


def load_schedule(schedule: torch.optim.lr_scheduler.LambdaLR, *, done: int) -> None:
    """Continue after `done` optimizer steps, by the schedule as it is configured now.

    Its shape, length and peak may differ from those of the run so far.
    """
    rates = [
        base * share(done)
        for base, share in zip(schedule.base_lrs, schedule.lr_lambdas, strict=True)
    ]
    schedule.load_state_dict(
        {**schedule.state_dict(), "last_epoch": done, "_step_count": done + 1, "_last_lr": rates}
    )
    for group, current_rate in zip(schedule.optimizer.param_groups, rates, strict=True):
        group["lr"] = current_rate
