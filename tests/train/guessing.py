"""A dialogue for tests: guess a number; the environment says higher or lower."""

from collections.abc import Sequence
from typing import ClassVar

from grpo_core import Environment, Message, Reward, Rollout, Task, TaskKey, Verdict


class Guessing(Environment[int]):
    max_turns = 3
    max_new_tokens = 6
    parts: ClassVar[dict[str, float]] = {"digits": 1.0}

    def task(self, key: TaskKey) -> Task[int]:
        return Task(key, (Message("user", f"guess {key.index}"),), key.rng().randrange(10))

    async def reply(self, task: Task[int], messages: Sequence[Message]) -> Sequence[Message] | None:
        guess = messages[-1].content
        return (
            None
            if guess == str(task.data)
            else (Message("user", "higher" if len(guess) % 2 else "lower"),)
        )

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        said = "".join(m.content for m in rollout.messages if m.role == "assistant")
        return Verdict(
            {"digits": Reward(sum(c.isdigit() for c in said) / max(1, len(said)))},
            passed=rollout.text == str(task.data),
        )
