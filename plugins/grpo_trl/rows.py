"""Write tasks as rows of a data set, and read their keys from the rows.

A row has the prompt and, in the column `task_key`, the key of the task with a digest of the prompt.
TRL hands the column to the reward functions. A rollout function gets nothing but prompts, so in
environments with dialogues the last message of a prompt carries the column's content as well.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from grpo_core import MASK, ConfigError, Message, MissingExtraError, Task, TaskKey
from grpo_core.api.calls import prompt_digest
from grpo_core.api.protocol import Split
from grpo_core.api.runs import epoch_order
from grpo_core.api.verify import size_of
from grpo_trl.opened import OpenEnvironment

KEY_COLUMN = "task_key"
"""The column with the key, and the field of a prompt's last message with the same content."""
_DIGEST = "prompt_sha256"
_CHUNK = 1000
"""How many tasks are made at the same time."""


def dataset(env: OpenEnvironment, split: Split, count: int | None = None) -> Any:
    """Return tasks of an environment as a `datasets.Dataset`.

    Its columns are `prompt`, a list of messages with role and content, or a text where the
    environment's prompt is raw text, and `task_key`. Training tasks are the first ones that a run
    with the same seed and level deals; held-out tasks are those of its evaluation.

    Args:
        env: the environment.
        split: "train" or "eval", the held-out tasks.
        count: number of tasks; None: all of a finite split.

    Raises:
        ConfigError: there are not so many tasks, or TRL cannot train on them.
        MissingExtraError: the package `datasets` is not installed.
    """
    keys = _keys(env, split, count)
    try:
        from datasets import Dataset
    except ModuleNotFoundError as error:
        raise MissingExtraError("grpo_trl.dataset", "datasets", package=error.name or "") from None
    rows = [
        _row(task, dialogue=env.turns > 1)
        for start in range(0, len(keys), _CHUNK)
        for task in env.tasks(keys[start : start + _CHUNK])
    ]
    if len({type(row["prompt"]) for row in rows}) > 1:
        raise ConfigError(
            f"some prompts of {env.name!r} are chats and others raw text, but all rows of TRL's "
            "data set have to be of one kind; train with `grpo run`"
        )
    return Dataset.from_list(rows)


def task_keys(values: Sequence[Mapping[str, Any]]) -> list[TaskKey]:
    """Return the keys that the column `task_key` of some rows holds.

    Raises:
        ConfigError: a value is not what `dataset` wrote.
    """
    try:
        return [
            TaskKey(**{name: value[name] for name in value if name != _DIGEST}) for value in values
        ]
    except (TypeError, AttributeError):
        raise ConfigError(
            f"the column {KEY_COLUMN!r} holds {values[0]!r:.200}, which is no task's key; make the "
            "data set with grpo_trl.dataset"
        ) from None


def refuse_other_prompts(values: Sequence[Mapping[str, Any]], tasks: Sequence[Task[Any]]) -> None:
    """Check that rows and tasks have the same prompts.

    Args:
        values: the column `task_key`.
        tasks: the tasks that an environment makes for these keys.

    Raises:
        ConfigError: an environment with other settings, or another version, made the rows.
    """
    for value, task in zip(values, tasks, strict=True):
        if value.get(_DIGEST) != prompt_digest(task):
            raise ConfigError(
                f"the data set has another prompt for {task.key} than the environment makes now; "
                "make data set and reward functions with the same settings and the same version"
            )


def key_value(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of the column `task_key` that the last message of a prompt carries.

    Raises:
        ConfigError: it carries none.
    """
    try:
        value: dict[str, Any] = json.loads(message[KEY_COLUMN])
    except (KeyError, TypeError, ValueError):
        raise ConfigError(
            f"the last message of a prompt has no {KEY_COLUMN!r}, so its task is not known; make "
            "the data set with grpo_trl.dataset and keep the last message"
        ) from None
    return value


def _keys(env: OpenEnvironment, split: Split, count: int | None) -> list[TaskKey]:
    size = size_of(env.env, split)
    if count is None and size is None:
        raise ConfigError(
            f"{env.name!r} generates {split} tasks without end; say how many the data set holds, "
            f"as in dataset(env, {split!r}, 1000)"
        )
    count = size if count is None else count
    if not count or count < 0 or (size is not None and count > size):
        available = "without end" if size is None else f"{size}"
        raise ConfigError(
            f"a data set of {count} tasks is not possible: {env.name!r} has {available} "
            f"in its {split} split with these settings"
        )
    if split == "eval":
        return [TaskKey(env.name, split, index, 0, env.level) for index in range(count)]
    seed = env.config.seed
    order = range(count) if size is None else epoch_order(env.name, seed, 0, size)[:count]
    return [TaskKey(env.name, split, index, seed, env.level) for index in order]


def _row(task: Task[Any], *, dialogue: bool) -> dict[str, Any]:
    """Return the row of a task.

    Raises:
        ConfigError: TRL cannot train on it.
    """
    prompt = task.prompt
    if any(MASK in text for text in _texts(prompt)):
        raise ConfigError(
            f"the prompts of {task.key.env!r} have gaps for a masked language model, but TRL's "
            "GRPOTrainer trains models that continue a text; train with `grpo run`"
        )
    value = {**asdict(task.key), _DIGEST: prompt_digest(task)}
    if isinstance(prompt, str):
        if dialogue:
            raise ConfigError(
                f"{task.key.env!r} holds dialogues after prompts of raw text, and a text cannot "
                "carry its key to TRL's rollout function; train with `grpo run`, or make the "
                "prompt a chat"
            )
        return {"prompt": prompt, KEY_COLUMN: value}
    messages = [{"role": message.role, "content": message.content} for message in prompt]
    if dialogue:
        messages[-1][KEY_COLUMN] = json.dumps(value)
    return {"prompt": messages, KEY_COLUMN: value}


def _texts(prompt: str | tuple[Message, ...]) -> list[str]:
    return [prompt] if isinstance(prompt, str) else [message.content for message in prompt]
