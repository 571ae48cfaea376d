"""Environments that use what a dialogue with an endpoint has to carry: tools, raw text, groups, failures."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import MappingProxyType

from grpo_core import (
    Environment,
    Episode,
    Group,
    Message,
    Reward,
    Rollout,
    Task,
    TaskKey,
    ToolEpisode,
    Verdict,
    tool,
    tools_of,
)


def call(name: str, arguments: str) -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {{{arguments}}}}}</tool_call>'


class ShopEpisode(ToolEpisode[dict[str, int]]):
    def __init__(self, task: Task[dict[str, int]]) -> None:
        super().__init__(task)
        self.basket: dict[str, int] = {}

    async def open(self) -> Sequence[Message]:
        return (Message("user", f"My list: {self.task.data}"),)

    async def verdict(self, rollout: Rollout) -> Verdict:
        done = self.basket == self.task.data
        return Verdict({"reward": Reward(float(done))}, passed=done, answer=str(self.basket))

    @tool
    async def put(self, item: str, count: int = 1) -> str:
        """Put something into the basket."""
        self.basket[item] = self.basket.get(item, 0) + count
        return f"{self.basket[item]} x {item}"

    @tool
    def look(self) -> dict[str, int]:
        """Return what is in the basket."""
        return self.basket


class Shop(Environment[dict[str, int]]):
    """Two calls in one turn, another in the next, then a word."""

    max_turns = 4
    levels = False
    replayable = True

    def task(self, key: TaskKey) -> Task[dict[str, int]]:
        data = {"apple": key.rng().randint(1, 9), "pear": 2}
        return Task(key, (Message("user", f"Go shopping, customer {key.index}."),), data)

    def tools(self) -> Sequence[Callable[..., object]]:
        return tools_of(ShopEpisode)

    def episode(self, task: Task[dict[str, int]]) -> Episode:
        return ShopEpisode(task)

    def reference(self, task: Task[dict[str, int]]) -> tuple[str, ...]:
        puts = [call("put", f'"item": "{item}", "count": {n}') for item, n in task.data.items()]
        return ("".join(puts), call("look", ""), "Done.")


class Tale(Environment[str]):
    """A dialogue in raw text: the policy continues a text twice."""

    max_turns = 2
    levels = False
    trusted = True

    def task(self, key: TaskKey) -> Task[str]:
        return Task(key, f"Tale {key.index}. Once upon a", str(key.index))

    async def reply(self, task: Task[str], messages: Sequence[Message]) -> Sequence[Message] | None:
        return (Message("user", " And then a"),)

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        told = [m.content for m in rollout.messages if m.role == "assistant"]
        done = told == [" time.", f" {task.data}."]
        return Verdict({"reward": Reward(float(done))}, passed=done)

    def reference(self, task: Task[str]) -> tuple[str, ...]:
        return (" time.", f" {task.data}.")


class Ranked(Environment[int]):
    """Judges all attempts at a task together: the longest one passes."""

    levels = False

    def task(self, key: TaskKey) -> Task[int]:
        return Task(key, (Message("user", f"Say much, number {key.index}."),), key.index)

    async def verify_batch(self, groups: Sequence[Group[int]]) -> list[list[Verdict]]:
        return [self._ranked([rollout.text for rollout in group.rollouts]) for group in groups]

    def _ranked(self, texts: Sequence[str]) -> list[Verdict]:
        most = max(map(len, texts))
        return [
            Verdict({"reward": Reward(len(text) / most)}, passed=len(text) == most)
            for text in texts
        ]

    def reference(self, task: Task[int]) -> str:
        return "word" * (1 + task.data)


class Says(Environment[str]):
    """Say the number of the task."""

    parts = MappingProxyType({"reward": 1.0})
    levels = False
    trusted = True

    def task(self, key: TaskKey) -> Task[str]:
        return Task(key, (Message("user", f"Say {key.index}."),), str(key.index))

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        right = rollout.text == task.data
        answer = self.noticed(rollout)
        return Verdict({"reward": Reward(float(right))}, passed=right, answer=answer)

    def noticed(self, rollout: Rollout) -> str:
        return rollout.text

    def reference(self, task: Task[str]) -> str:
        return task.data


class Frail(Says):
    """A verifier that fails while a file exists."""

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        if task.data == "1" and Path(os.environ["FRAIL_WHILE"]).exists():
            raise OSError("the verifier is down")
        return super().verify(task, rollout)


class Pondered(Says):
    """Says what it sees of the thoughts."""

    def noticed(self, rollout: Rollout) -> str:
        return rollout.messages[-1].thoughts


class PonderedElsewhere(Pondered):
    """Judged in a worker."""

    trusted = False


class Rounded(Says):
    """Pays 0.3, or for "b" 0.1 + 0.2, and for "c" more."""

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        rewards = {"b": 0.1 + 0.2, "c": 0.5}
        return Verdict({"reward": Reward(rewards.get(rollout.text, 0.3))})

    def reference(self, task: Task[str]) -> str:
        return "c"
