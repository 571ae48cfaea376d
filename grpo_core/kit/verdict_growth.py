"""Measure by how much the tasks and verdicts of an environment make the second process grow."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from grpo_core.kit.growth import measure_growth
from grpo_core.kit.observed import Judge
from grpo_core.kit.scripts import join_turns
from grpo_core.protocol.agent import AgentEnvironment
from grpo_core.protocol.environment import Environment
from grpo_core.protocol.types import Task, TaskKey
from grpo_core.verify.checks import check_reference, size_of

_TIMED_TASKS = 5
"""Tasks whose time tells whether further ones are made while memory is measured."""
_QUICK_TASK_SECONDS = 0.005
"""A task that takes longer would leave too few verdicts."""
_LONG_WORDS = 800
"""How often long answers repeat two words: what keeps answers keeps much of them."""


async def measure_growth_of(
    judge: Judge, attempts: Sequence[tuple[Task[Any], str]], form: Sequence[str]
) -> dict[str, Any] | None:
    """Return what `measure_growth` returns for verdicts; None if there are no attempts.

    Every second answer is one of its own, and every fourth a long one. Where tasks are made
    quickly, one is made for each verdict, and every fourth verdict is on the right answer to it,
    since a run has new tasks in each step; the attempts of agents are recorded, and stay with their
    tasks.

    Args:
        judge: Makes the verdicts.
        attempts: Attempts that were judged before.
        form: What stands before and after an answer.
    """
    if not attempts:
        return None
    key = replace(attempts[0][0].key, split="train")
    size = size_of(judge.env, "train") or sys.maxsize
    makes_tasks = _makes_quickly(
        judge.env, [replace(key, index=index % size) for index in range(_TIMED_TASKS)]
    )

    async def judge_answer(number: int) -> None:
        task, text = attempts[number % len(attempts)]
        task = replace(task)  # an object of its own, as the tasks of a run are
        if makes_tasks:
            with contextlib.suppress(Exception):  # the subject of task.made
                new = judge.env.task(replace(key, index=number % size))
                if number % 4 == 0 and not isinstance(judge.env, AgentEnvironment):
                    task, text = new, join_turns(check_reference(judge.env.reference(new))) or text
        unseen = f"{10**6 + number}{' and more' * (_LONG_WORDS if number % 4 == 3 else 0)}"
        if number % 2:
            await judge.verdict_on_unseen(task, unseen, form)
        else:
            await judge.verdict(task, text)

    return await measure_growth(judge_answer)


def _makes_quickly(env: Environment[Any], keys: Sequence[TaskKey]) -> bool:
    """Return whether the environment makes these tasks, and in a short time."""
    started = time.monotonic()
    try:
        for key in keys:
            env.task(key)
    except Exception:  # noqa: BLE001 - environments raise what they like; see task.made
        return False
    return time.monotonic() - started < len(keys) * _QUICK_TASK_SECONDS
