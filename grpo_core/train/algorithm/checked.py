"""Check what the estimators and losses of plugins take and return.

A wrong one would end a run by an error deep in the trainer, or skip every optimizer step.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from grpo_core.config.settings import AdvantageConfig, LossConfig
from grpo_core.protocol.errors import PluginError
from grpo_core.train.algorithm.advantages import Advantage
from grpo_core.train.algorithm.losses import Surrogate
from grpo_core.train.algorithm.rewards import Rewards

ESTIMATOR = ("rewards", "config")
LOSS = ("log_ratio_BT", "logprob_BT", "advantage_BT", "config")


def checked_estimator(function: Callable[..., Any], setting: str) -> Advantage:
    """Return the estimator of a plugin with a check of each result.

    Args:
        function: the target that the plugin offers.
        setting: what named it, as "advantage.name=plugin:median", for messages.

    Raises:
        PluginError: it cannot be called as an estimator is. The returned function raises it for a
            wrong result, and sets advantages of completions that are not scored, and of turns that
            a completion did not have, to 0.
    """
    _check_arguments(function, setting, "an estimator", ESTIMATOR)

    def estimator(rewards: Rewards, config: AdvantageConfig) -> Tensor:
        advantage = function(rewards, config)
        if not (isinstance(advantage, Tensor) and advantage.shape == rewards.turn_PGT.shape):
            _check_shape(advantage, rewards.total_PG, setting, "advantage_PG")
        advantage = torch.where(
            rewards.counted(advantage), advantage.detach().to(rewards.total_PG), 0.0
        )
        if not torch.isfinite(advantage).all():
            raise PluginError(f"{setting} returned an advantage that is not finite")
        return advantage

    return estimator


def checked_loss(function: Callable[..., Any], setting: str) -> Surrogate:
    """Return the loss of a plugin with a check of each result.

    Args:
        function: the target that the plugin offers.
        setting: what named it, as "loss.name=plugin:median/loss", for messages.

    Raises:
        PluginError: it cannot be called as a loss is. The returned function raises it for a wrong
            result.
    """
    _check_arguments(function, setting, "a loss", LOSS)

    def loss(
        log_ratio_BT: Tensor, logprob_BT: Tensor, advantage_BT: Tensor, config: LossConfig
    ) -> Tensor:
        loss_BT = function(log_ratio_BT, logprob_BT, advantage_BT, config)
        _check_shape(loss_BT, logprob_BT, setting, "loss_BT")
        if logprob_BT.requires_grad and not loss_BT.requires_grad:
            raise PluginError(
                f"{setting} returned a loss without a gradient; "
                "compute it from logprob_BT or log_ratio_BT without detaching both"
            )
        result: Tensor = loss_BT
        return result

    return loss


def _check_arguments(
    function: Callable[..., Any], setting: str, what: str, names: tuple[str, ...]
) -> None:
    """Raise PluginError if `function` cannot be called with an argument for each name."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some callables of compiled code have none
        return
    try:
        signature.bind(*names)
    except TypeError:
        raise PluginError(
            f"{setting} does not name {what}, which is called with ({', '.join(names)}); "
            f"found a function of {signature}"
        ) from None


def _check_shape(result: object, like: Tensor, setting: str, name: str) -> None:
    """Raise PluginError if the result is not a tensor of the shape of `like`."""
    found = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
    if found != tuple(like.shape):
        raise PluginError(
            f"{setting} has to return {name}, a tensor of shape {tuple(like.shape)}; found {found}"
        )
