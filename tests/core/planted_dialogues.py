"""Toy dialogues and tools with one fault each, beside the sound ones that they are made from."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from grpo_core import Environment, Message, Reward, Rollout, Task, TaskKey, Verdict
from grpo_core.extract import parse_integer


class Guess(Environment[int]):
    """The sound dialogue: guess a number, hear "higher" or "lower", say it last."""

    max_turns = 6
    levels = False
    timeout_seconds = 2.0

    def task(self, key: TaskKey) -> Task[int]:
        rng = key.rng()
        low = 10 * rng.randrange(20, 900) + (5 if key.split == "eval" else 0)
        prompt = (
            Message("user", f"I think of a number from {low} on, below {low + 40}. Guess it."),
        )
        return Task(key, prompt, low + rng.randrange(1, 40))

    async def reply(self, task: Task[int], messages: Sequence[Message]) -> Sequence[Message] | None:
        return self.said(task, messages)

    def said(self, task: Task[int], messages: Sequence[Message]) -> Sequence[Message] | None:
        guess = parse_integer(messages[-1].content, max_digits=6)
        if guess == task.data:
            return None
        hint = "one number" if guess is None else "higher" if guess < task.data else "lower"
        return (Message("user", hint),)

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        return self.scored(task, rollout.text)

    def scored(self, task: Task[int], text: str) -> Verdict:
        answer = parse_integer(text, max_digits=6)
        right = answer == task.data
        return Verdict(
            {"reward": Reward(float(right))},
            passed=right,
            answer=None if answer is None else str(answer),
        )

    def reference(self, task: Task[int]) -> Sequence[str]:
        return (str(task.data - 1), str(task.data))

    def cheats(self, task: Task[int]) -> Sequence[str | Sequence[str]]:
        return (f"{task.data} or {task.data + 1}", ("1", f"{task.data}?"))


class Sure(Guess):
    """Sound: exactly two turns, and a reply that is always the same."""

    max_turns = 2

    async def reply(self, task: Task[int], messages: Sequence[Message]) -> Sequence[Message] | None:
        return [Message("user", "Are you sure? Say it again.")]


class NumbersAsReference(Guess):
    def reference(self, task: Task[int]) -> Any:
        return (task.data - 1, task.data)


class TooManyTurns(Guess):
    max_turns = 1


class Raises(Guess):
    async def reply(self, task: Task[int], messages: Sequence[Message]) -> Sequence[Message] | None:
        return [Message("user", {"a": "b"}[messages[-1].content])]


class Blocks(Guess):
    async def reply(self, task: Task[int], messages: Sequence[Message]) -> Sequence[Message] | None:
        time.sleep(30)  # noqa: ASYNC251 - the fault
        return None
