"""What a task and a verdict must be before anyone computes with them; a breach is the environment's bug, told in one line."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

from grpo_core.calls.isolation import clip, reason
from grpo_core.extract import is_text
from grpo_core.protocol.environment import Environment
from grpo_core.protocol.errors import GrpoError
from grpo_core.protocol.types import Message, Reward, Split, Task, TaskKey, Verdict

_TOLERANCE = 1e-6


class BrokenContractError(Exception):
    """An environment returned what the protocol does not allow. Never leaves the engine: it becomes an error verdict or a GrpoError."""


def check_task(task: object, key: TaskKey) -> Task[Any]:
    """`task` itself, if it is one, bears `key` and asks something."""
    if not isinstance(task, Task):
        raise BrokenContractError(f"task() returned {_kind(task)}; it must return a Task")
    if task.key != key:
        raise BrokenContractError(
            f"task() returned the task of {task.key}, asked for {key}; pass the key on unchanged"
        )
    if isinstance(task.prompt, str):
        texts = [task.prompt]
    elif isinstance(task.prompt, tuple) and all(isinstance(m, Message) for m in task.prompt):
        texts = [m.content for m in task.prompt]
    else:
        raise BrokenContractError(
            f"task().prompt is {_kind(task.prompt)}; it must be a str or a tuple of Message"
        )
    if not any(text.strip() for text in texts):
        raise BrokenContractError(
            f"task().prompt is empty for {key}; the policy needs something to answer"
        )
    return task


def size_of(env: Environment[Any], split: Split) -> int | None:
    """How many tasks a split has, None for no end; raises GrpoError if size() fails or says anything else."""
    try:
        size = env.size(split)
    except Exception as error:  # noqa: BLE001 - environments raise what they like
        raise GrpoError(f"the environment failed in size({split!r}): {reason(error)}") from None
    if size is None or (type(size) is int and size >= 0):
        return size
    raise GrpoError(
        f"size({split!r}) returned {_kind(size)}; it must return the number of tasks, or None if there is no end"
    )


def check_verdict(verdict: object, env: type[Environment[Any]] | Environment[Any]) -> Verdict:
    """`verdict` with plain numbers and the environment's default weights, if it keeps the protocol; raises BrokenContractError if not."""
    if not isinstance(verdict, Verdict):
        raise BrokenContractError(
            f"the verifier returned {_kind(verdict)}; it must return a Verdict"
        )
    if verdict.error is not None:
        error, detail = clip(str(verdict.error)), _json_or(verdict.detail, {})
        return replace(verdict, error=error, rewards={}, metrics={}, detail=detail)
    if set(verdict.rewards) != set(env.parts):
        found, wanted = sorted(map(str, verdict.rewards)), sorted(env.parts)
        raise BrokenContractError(
            f"the verdict has the parts {found}, `parts` declares {wanted}; every verdict lists every part"
        )
    rewards = {
        name: _check_reward(name, verdict.rewards[name], weight)
        for name, weight in env.parts.items()
    }
    detail = _json_or(verdict.detail, None)
    if detail is None:
        raise BrokenContractError(
            "the verdict's detail is not JSON (texts, finite numbers, lists, dicts with text keys)"
        )
    checked = replace(
        verdict,
        rewards=rewards,
        passed=bool(verdict.passed),
        metrics=_check_metrics(verdict.metrics),
        detail=detail,
    )
    low, high = env.reward_range
    if not low - _TOLERANCE <= checked.total <= high + _TOLERANCE:
        raise BrokenContractError(
            f"the total reward {checked.total:g} is outside reward_range {low:g}..{high:g}"
        )
    if checked.answer is not None and not isinstance(checked.answer, str):
        raise BrokenContractError(
            f"the verdict's answer is {_kind(checked.answer)}; it must be a str or None"
        )
    return checked


def check_reply(turn: object) -> Sequence[Message] | None:
    """The environment's turn, if it is one that can be said; raises BrokenContractError if not."""
    if turn is None:
        return None
    if not isinstance(turn, list | tuple) or not all(
        isinstance(message, Message) for message in turn
    ):
        raise BrokenContractError(
            f"reply() returned {_kind(turn)}; it must return a list or tuple of Message, or None"
        )
    if not all(is_text(message.content) for message in turn):
        raise BrokenContractError(
            "reply() returned half of a surrogate pair, which is no text and has no tokens"
        )
    return turn


def check_audit(value: object) -> float | None:
    """What `audit` gave, if it is a finite number or None; raises BrokenContractError if not."""
    return None if value is None else _finite(value, "the audit")


def reweigh(verdict: Verdict, weights: Mapping[str, float]) -> Verdict:
    """The same verdict under the run's own weights."""
    if not weights or not verdict.scored:
        return verdict
    return replace(
        verdict,
        rewards={
            n: replace(r, weight=weights.get(n, r.weight)) for n, r in verdict.rewards.items()
        },
    )


def _check_reward(name: str, reward: object, weight: float) -> Reward:
    if not isinstance(reward, Reward):
        raise BrokenContractError(
            f"the reward part {name!r} is {_kind(reward)}; it must be a Reward"
        )
    if reward.weight not in (1.0, weight):
        raise BrokenContractError(
            f"the reward part {name!r} has the weight {reward.weight:g}, `parts` declares {weight:g}; leave it out, the engine sets it"
        )
    value = _finite(reward.value, f"the reward part {name!r}")
    return Reward(
        value,
        float(weight),
        str(reward.note),
        _finite(reward.seconds, f"the seconds of the reward part {name!r}"),
    )


def _check_metrics(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {str(name): _finite(value, f"the metric {name!r}") for name, value in metrics.items()}


def _finite(value: Any, what: str) -> float:
    if not isinstance(value, Real):
        raise BrokenContractError(f"{what} is {_kind(value)}; it must be a number")
    try:
        number = float(value)
    except OverflowError:  # an int beyond any float
        number = math.inf
    if not math.isfinite(number):
        raise BrokenContractError(f"{what} is {number}; it must be finite")
    return number


def _json_or(detail: Mapping[str, Any], otherwise: Any) -> Any:
    try:
        return json.loads(json.dumps(dict(detail), allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        return otherwise


def _kind(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
