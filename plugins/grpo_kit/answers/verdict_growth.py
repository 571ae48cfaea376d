"""Measure by how much the tasks and verdicts of an environment make the second process grow."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from grpo_core import AgentEnvironment, Task, TaskKey
from grpo_core.api.verify import check_reference, size_of
from grpo_kit.answers.growth import measure_growth
from grpo_kit.dialogues.scripts import join_turns
from grpo_kit.process.observed import SecondJudge

_TIMED_TASKS = 5
"""Tasks whose time tells whether further ones are made while memory is measured.

Of a finite list no other ones are made: what is kept of each row has an end.
"""
_QUICK_TASK_SECONDS = 0.005
"""A task that takes longer would leave too few verdicts."""
_QUICK_REFERENCE_SECONDS = 0.02
"""A task and its reference that take longer would do so, too; they are made for every fourth."""
_LONG_WORDS = 800
"""How often long answers repeat two words: what keeps answers keeps much of them."""


async def measure_growth_of(
    judge: SecondJudge,
    attempts: Sequence[tuple[Task[Any], str]],
    form: Sequence[str],
    *,
    references: bool,
) -> dict[str, Any] | None:
    """Return what `measure_growth` returns for verdicts; None if there are no attempts.

    Every second answer is one of its own, and every fourth a long one. Where tasks are made
    quickly, one is made for each verdict, and where references are, too, every fourth verdict is on
    the right answer to it, since a run has new tasks in each step; the attempts of agents are
    recorded, and stay with their tasks.

    Args:
        judge: Makes the verdicts.
        attempts: Attempts that were judged before.
        form: What stands before and after an answer.
        references: Whether references may be computed.
    """
    if not attempts:
        return None
    key = replace(attempts[0][0].key, split="train")
    rows = size_of(judge.env, "train")
    size = sys.maxsize if rows is None else min(rows, _TIMED_TASKS)
    keys = [replace(key, index=index % size) for index in range(_TIMED_TASKS)]

    def answered(key: TaskKey) -> tuple[Task[Any], str | None]:
        task = judge.env.task(key)
        return task, join_turns(check_reference(judge.env.reference(task)))

    makes_tasks = _is_quick(judge.env.task, keys, seconds=_QUICK_TASK_SECONDS)
    answers_tasks = (
        makes_tasks
        and references
        and not isinstance(judge.env, AgentEnvironment)
        and _is_quick(answered, keys, seconds=_QUICK_REFERENCE_SECONDS)
    )

    async def judge_answer(number: int) -> None:
        task, text = attempts[number % len(attempts)]
        task = replace(task)  # an object of its own, as the tasks of a run are
        if makes_tasks:
            with contextlib.suppress(Exception):  # the subject of task.made
                new = replace(key, index=number % size)
                if answers_tasks and number % 4 == 0:
                    task, right = answered(new)
                    text = right or text
                else:
                    judge.env.task(new)
        unseen = f"{10**6 + number}{' and more' * (_LONG_WORDS if number % 4 == 3 else 0)}"
        if number % 2:
            await judge.verdict_on_unseen(task, unseen, form)
        else:
            await judge.verdict(task, text)

    return await measure_growth(judge_answer)


def _is_quick(
    function: Callable[[TaskKey], object], keys: Sequence[TaskKey], *, seconds: float
) -> bool:
    """Return whether a function takes less than so many seconds for each key, and never fails."""
    started = time.monotonic()
    for key in keys:
        try:
            function(key)
        except Exception:  # noqa: BLE001 - environments raise what they like; see task.made
            return False
        if time.monotonic() - started > len(keys) * seconds:
            return False
    return True
