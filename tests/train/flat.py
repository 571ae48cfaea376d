"""Environments whose verifiers pay every answer the same, fail at every one, or print what they see."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from grpo_core import Environment, Message, Reward, Rollout, Task, TaskKey, Verdict


@dataclass(frozen=True, slots=True)
class Config:
    """pay: the reward of every answer; spread: how much it depends on the text."""

    pay: float = 0.0
    passed: bool = False
    spread: float = 0.0


class Flat(Environment[str]):
    Config = Config
    parts: ClassVar[Mapping[str, float]] = {"exact": 1.0, "form": 0.0}
    reward_range = (-1.0, 1.0)
    floor = -1.0
    levels = True
    max_new_tokens = 6

    def task(self, key: TaskKey) -> Task[str]:
        number = key.rng().randrange(10_000)
        return Task(key, (Message("user", f"{number}?"),), str(number))

    def reference(self, task: Task[str]) -> str:
        return task.data

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        print(f"DEBUG saw {len(rollout.text)} characters")
        note = "" if self.config.passed else "looked for a number; there is none"
        value = self.config.pay + self.config.spread * (sum(map(ord, rollout.text)) % 97) / 97
        rewards = {"exact": Reward(value, note=note), "form": Reward(0.0)}
        return Verdict(
            rewards, passed=self.config.passed, answer="all" if self.config.passed else None
        )


class Failing(Flat):
    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        raise RuntimeError("the database of answers is gone")


class Open(Flat):
    open_ended = True
