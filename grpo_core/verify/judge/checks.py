"""Check tasks and verdicts before they are used.

An object that breaks the protocol is a bug of the environment; the message describes it in one
line.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

from grpo_core.calls.isolation import clip, reason
from grpo_core.extract import is_text
from grpo_core.protocol.environment import Environment
from grpo_core.protocol.errors import ConfigError, GrpoError
from grpo_core.protocol.scalars import as_float
from grpo_core.protocol.tools import schemas
from grpo_core.protocol.types import (
    Message,
    Reward,
    Role,
    Rollout,
    Split,
    Task,
    TaskKey,
    Verdict,
)
from grpo_core.verify.judge.thought_notes import note_on, with_note

NOT_TEXT = "half of a surrogate pair"
"""What a message says of a reply that cannot be encoded."""
_TOLERANCE = 1e-6
"""How far a total reward may exceed reward_range, because of rounding."""


class BrokenContractError(Exception):
    """An environment returned an object that the protocol does not allow.

    The engine turns this into an error verdict or a GrpoError; it never leaves the engine.
    """


def check_task(task: object, key: TaskKey) -> Task[Any]:
    """Return `task` if it is a Task with this key and a prompt that is not empty.

    Raises:
        BrokenContractError: it is not.
    """
    if not isinstance(task, Task):
        raise BrokenContractError(f"task() returned {_describe_type(task)}; it must return a Task")
    if task.key != key:
        raise BrokenContractError(
            f"task() returned the task of {task.key} when called with {key}; "
            "pass the key on unchanged"
        )
    prompt: object = task.prompt
    if not isinstance(prompt, str) and not (
        isinstance(prompt, tuple) and all(isinstance(message, Message) for message in prompt)
    ):
        raise BrokenContractError(
            f"task().prompt is {_describe_type(prompt)}; it must be a str or a tuple of Message"
        )
    roles = [] if isinstance(prompt, str) else [message.role for message in prompt]
    for role in roles:
        if role not in get_args(Role):
            raise BrokenContractError(
                f"a message of task().prompt has the role {role!r}; roles are "
                f"{', '.join(map(repr, get_args(Role)))}"
            )
    texts = [prompt] if isinstance(prompt, str) else [message.content for message in prompt]
    if not any(text.strip() for text in texts):
        raise BrokenContractError(
            f"task().prompt is empty for {key}; the policy needs something to answer"
        )
    return task


def size_of(env: Environment[Any], split: Split) -> int | None:
    """Return how many tasks a split has; None if it is unlimited.

    Raises:
        GrpoError: size() fails or returns anything else.
    """
    try:
        size = env.size(split)
    except Exception as error:  # noqa: BLE001 - environments raise what they like
        raise GrpoError(f"the environment failed in size({split!r}): {reason(error)}") from None
    if size is None or (type(size) is int and size >= 0):
        return size
    raise GrpoError(
        f"size({split!r}) returned {_describe_type(size)}; "
        "it must return the number of tasks, or None if that is unlimited"
    )


def described_tools(env: Environment[Any]) -> list[dict[str, Any]]:
    """Return the descriptions of the environment's tools, in the form that chat templates expect.

    Raises:
        GrpoError: tools() raises, or returns what cannot be described.
    """
    try:
        return schemas(env.tools())
    except GrpoError:
        raise
    except Exception as error:  # noqa: BLE001 - environments raise what they like
        raise GrpoError(f"the environment failed in tools(): {reason(error)}") from None


def offered_tools(env: Environment[Any]) -> list[dict[str, Any]]:
    """Return the descriptions of the tools that the policy may call in a dialogue.

    Raises:
        GrpoError: as `described_tools`.
        ConfigError: no call could be answered, as the policy has one turn.
    """
    tools = described_tools(env)
    if tools and env.max_turns < 2:
        raise ConfigError(
            f"{type(env).__qualname__} offers tools, but its max_turns is {env.max_turns}, so no "
            "tool call could be answered; set max_turns to 2 or more in the class"
        )
    return tools


def check_verdict(
    verdict: object,
    env: type[Environment[Any]] | Environment[Any],
    rollout: Rollout | None = None,
) -> Verdict:
    """Return `verdict` with plain numbers and the environment's default weights.

    Args:
        verdict: what the verifier returned.
        env: the environment.
        rollout: what was judged, if it is known: a part that says what each turn earned has as
            many numbers as the policy had turns. A note says that the last turn has no answer.

    Raises:
        BrokenContractError: the verdict breaks the protocol.
    """
    if inspect.iscoroutine(verdict):
        verdict.close()
        raise BrokenContractError(
            "verify() is async and returned a coroutine; name it averify(), or remove `async`"
        )
    if not isinstance(verdict, Verdict):
        raise BrokenContractError(
            f"the verifier returned {_describe_type(verdict)}; it must return a Verdict"
        )
    output = verdict.output if isinstance(verdict.output, str) else ""
    if verdict.error is not None:
        error, detail = clip(str(verdict.error)), _json_copy_or(verdict.detail, {})
        return replace(verdict, error=error, rewards={}, metrics={}, detail=detail, output=output)
    if set(verdict.rewards) != set(env.parts):
        raise BrokenContractError(
            f"the verdict has the parts {sorted(map(str, verdict.rewards))}, `parts` declares "
            f"{sorted(env.parts)}; every verdict lists every part"
        )
    rewards = {
        name: _check_reward(name, verdict.rewards[name], weight, rollout)
        for name, weight in env.parts.items()
    }
    detail = _json_copy_or(verdict.detail, None)
    if detail is None:
        raise BrokenContractError(
            "the verdict's detail is not JSON "
            "(strings, finite numbers, lists, dicts with string keys)"
        )
    checked = replace(
        verdict,
        rewards=rewards,
        passed=bool(verdict.passed),
        metrics={
            str(name): _to_finite_float(value, f"the metric {name!r}")
            for name, value in verdict.metrics.items()
        },
        detail=detail,
        output=output,
    )
    low, high = env.reward_range
    if not low - _TOLERANCE <= checked.total <= high + _TOLERANCE:
        raise BrokenContractError(
            f"the total reward {checked.total:g} is outside reward_range {low:g}..{high:g}"
        )
    if checked.answer is not None and not isinstance(checked.answer, str):
        raise BrokenContractError(
            f"the verdict's answer is {_describe_type(checked.answer)}; it must be a str or None"
        )
    note = "" if rollout is None or checked.passed else note_on(rollout)
    return with_note(checked, note) if note else checked


async def awaited(value: object, method: str) -> Any:
    """Await what a call of an asynchronous method gave, and return the result.

    Raises:
        BrokenContractError: it cannot be awaited, so the method is not asynchronous.
    """
    if not inspect.isawaitable(value):
        raise BrokenContractError(
            f"{method}() is not asynchronous, it returned {_describe_type(value)}; "
            f"write `async def {method}`"
        )
    return await value


def check_reply(turn: object) -> Sequence[Message] | None:
    """Return the environment's turn `turn` if it can be added to a dialogue.

    Raises:
        BrokenContractError: it is not None and not a sequence of one or more messages with valid
            text.
    """
    if turn is None:
        return None
    if not isinstance(turn, list | tuple) or not all(
        isinstance(message, Message) for message in turn
    ):
        raise BrokenContractError(
            f"reply() returned {_describe_type(turn)}; "
            "it must return a list or tuple of Message, or None"
        )
    if not turn:
        raise BrokenContractError(
            "reply() returned no message; it must return one, or None to end the dialogue"
        )
    for name in ("content", "thoughts"):
        texts: list[object] = [getattr(message, name) for message in turn]
        for text in texts:
            if not isinstance(text, str):
                raise BrokenContractError(
                    f"reply() returned a message whose {name} is {_describe_type(text)}; "
                    "it must be a str"
                )
    marks = [mark for message in turn for mark in message.thought_marks]
    if not all(isinstance(mark, str) for mark in marks):
        raise BrokenContractError(
            "reply() returned a message whose thought_marks are not two texts; leave them out"
        )
    if not all(is_text(message.content) for message in turn):
        raise BrokenContractError(
            f"reply() returned {NOT_TEXT}, which is not valid text and has no tokens"
        )
    return turn


def check_opening(messages: object) -> Sequence[Message]:
    """Return the messages with which an episode opens, if they can follow a prompt.

    Raises:
        BrokenContractError: they are not a sequence of messages of the environment with valid text.
    """
    if not isinstance(messages, list | tuple):
        raise BrokenContractError(
            f"open() returned {_describe_type(messages)}; it must return a list or tuple of "
            "Message, () for none"
        )
    if messages:
        check_reply(messages)
    if any(message.role == "assistant" for message in messages):
        raise BrokenContractError(
            'open() returned a message of the role "assistant", which is the policy\'s; '
            'write "user"'
        )
    return messages


def check_reference(value: object) -> str | tuple[str, ...] | None:
    """Return what `reference` returned, with the turns of a dialogue as a tuple.

    Raises:
        BrokenContractError: it is neither a text, nor a sequence of one or more texts, nor None.
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list | tuple) and value and all(isinstance(turn, str) for turn in value):
        return tuple(value)
    returned = _describe_type(value)
    if isinstance(value, list | tuple):
        returned += " that is not one of texts" if value else " that is empty"
    raise BrokenContractError(
        f"reference() returned {returned}; it must return a str, a list or tuple of str (the turns "
        "of a dialogue), or None"
    )


def check_cheats(value: object) -> list[str | tuple[str, ...]]:
    """Return what `cheats` returned, with the turns of dialogues as tuples.

    Raises:
        BrokenContractError: it is not a sequence of texts and of sequences of texts.
    """
    if isinstance(value, list | tuple):
        scripts = [check_reference(script) for script in value]
        if None not in scripts:
            return [script for script in scripts if script is not None]
    raise BrokenContractError(
        f"cheats() returned {_describe_type(value)}; it must return a list or tuple, whose members "
        "are each a str, or a list or tuple of str (the turns of a dialogue)"
    )


def check_audit(value: object) -> float | None:
    """Return the result of `audit` as a float, or None.

    Raises:
        BrokenContractError: it is neither a finite number nor None.
    """
    return None if value is None else _to_finite_float(value, "the audit")


def reweigh(verdict: Verdict, weights: Mapping[str, float]) -> Verdict:
    """Return the verdict with the run's own weights; parts without one keep theirs."""
    if not weights or not verdict.scored:
        return verdict
    return replace(
        verdict,
        rewards={
            name: replace(reward, weight=weights.get(name, reward.weight))
            for name, reward in verdict.rewards.items()
        },
    )


def _check_reward(name: str, reward: object, weight: float, rollout: Rollout | None) -> Reward:
    if not isinstance(reward, Reward):
        raise BrokenContractError(
            f"the reward part {name!r} is {_describe_type(reward)}; it must be a Reward"
        )
    if reward.weight not in (1.0, weight):
        raise BrokenContractError(
            f"the reward part {name!r} has the weight {reward.weight:g}, "
            f"`parts` declares {weight:g}; omit the weight, the engine sets it"
        )
    turns = reward.turns
    if turns is not None and rollout is not None and len(turns) != rollout.turns:
        raise BrokenContractError(
            f"the reward part {name!r} says what {len(turns)} turns earned, but the policy had "
            f"{rollout.turns}; `turns` has one number for each message of the policy"
        )
    return Reward(
        _to_finite_float(reward.value, f"the reward part {name!r}"),
        float(weight),
        str(reward.note),
        _to_finite_float(reward.seconds, f"the seconds of the reward part {name!r}"),
        turns=None if turns is None else tuple(float(value) for value in turns),
    )


def _to_finite_float(value: Any, what: str) -> float:
    """Return `value` as a float, or raise BrokenContractError if it is not a finite number.

    Args:
        value: the value to convert.
        what: what the error message calls it.
    """
    number = as_float(value)
    if number is None:
        raise BrokenContractError(f"{what} is {_describe_type(value)}; it must be a number")
    if not math.isfinite(number):
        raise BrokenContractError(f"{what} is {number}; it must be finite")
    return number


def _json_copy_or(detail: Mapping[str, Any], otherwise: Any) -> Any:
    """Return a copy of `detail` as JSON values, or `otherwise` if it is not JSON."""
    try:
        return json.loads(json.dumps(dict(detail), allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        return otherwise


def _describe_type(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
