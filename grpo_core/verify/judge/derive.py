"""Derive tasks from their keys, on the side that holds the environment."""

from __future__ import annotations

from typing import Any

from grpo_core.calls.wire import prompt_digest
from grpo_core.protocol.environment import Environment
from grpo_core.protocol.types import Task
from grpo_core.verify.judge.checks import BrokenContractError


def task_with_prompt(env: Environment[Any], task: Task[Any], prompt: str) -> Task[Any]:
    """Return the derived task if it has the prompt of this digest, else the canary that has it.

    `task()` does not make canaries, so they are found by their prompts.

    Raises:
        BrokenContractError: there is none, so the prompt is another one than in the trainer.
    """
    if prompt_digest(task) == prompt:
        return task
    for canary in env.canaries():
        if prompt_digest(canary) == prompt:
            return canary
    raise BrokenContractError(
        "task() returned another prompt for the same key in another process; "
        "take all randomness from key.rng()"
    )
