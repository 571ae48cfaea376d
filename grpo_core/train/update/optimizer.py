"""Optimizers and learning-rate schedules by name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from grpo_core.config.settings import OptimizerConfig, ScheduleConfig
from grpo_core.protocol.errors import MissingExtraError


def build_optimizer(parameters: Sequence[Tensor], config: OptimizerConfig) -> torch.optim.Optimizer:
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
    optimizer: torch.optim.Optimizer = bitsandbytes.optim.AdamW8bit(parameters, **settings)
    return optimizer


def rate(done: int, total: int, config: ScheduleConfig) -> float:
    """Share of the peak rate for the optimizer step after `done` of `total` steps; the first step of a warm-up is not 0."""
    warmup = config.warmup * total if config.warmup < 1 else config.warmup
    if done + 1 <= warmup:
        return (done + 1) / (warmup + 1)
    progress = min(
        1.0, max(0.0, done - warmup) / max(1.0, total - warmup)
    )  # a warm-up may end between two steps
    if config.name == "linear":
        return 1 - progress
    if config.name == "cosine":
        return (1 + math.cos(math.pi * progress)) / 2
    return 1.0


def build_schedule(
    optimizer: torch.optim.Optimizer, config: ScheduleConfig, *, total: int
) -> torch.optim.lr_scheduler.LambdaLR:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: rate(done, total, config))


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Put its running means back; rate, decay and all else stay as they are configured now."""
    configured = [
        {name: value for name, value in group.items() if name != "params"}
        for group in optimizer.param_groups
    ]
    optimizer.load_state_dict(state)
    for group, own in zip(optimizer.param_groups, configured, strict=True):
        group.update(own)


def load_schedule(schedule: torch.optim.lr_scheduler.LambdaLR, *, done: int) -> None:
    """Go on after `done` optimizer steps, by the plan of now: its shape, length and peak may be others than those of the run so far."""
    rates = [
        base * share(done)
        for base, share in zip(schedule.base_lrs, schedule.lr_lambdas, strict=True)
    ]
    schedule.load_state_dict(
        {**schedule.state_dict(), "last_epoch": done, "_step_count": done + 1, "_last_lr": rates}
    )
    for group, now in zip(schedule.optimizer.param_groups, rates, strict=True):
        group["lr"] = now
