"""A task that a random model of a few thousand weights learns in seconds: write the letter that the prompt names."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from grpo_core import Environment, Reward, Rollout, Task, TaskKey, Verdict


@dataclass(frozen=True, slots=True)
class Config:
    """fail_below: attempts whose share of right letters is below this cannot be judged."""

    fail_below: float = -1.0


class Letters(Environment[str]):
    """Reward: the share of characters that are an "a"."""

    Config = Config
    parts: ClassVar[Mapping[str, float]] = {"share": 1.0}
    max_new_tokens = 8
    trusted = True

    def task(self, key: TaskKey) -> Task[str]:
        return Task(key, f"letters {key.rng().randrange(1000)}:", "a")

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        share = rollout.text.count(task.data) / max(1, len(rollout.text))
        if share < self.config.fail_below:
            raise RuntimeError("the verifier broke")
        return Verdict({"share": Reward(share)}, passed=share > 0.5, answer=rollout.text)


class Raising(Letters):
    """A library's verifier that cannot read texts with a certain letter."""

    trusted = False
    raises_at_answers = True

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        if "t" in rollout.text:
            raise ValueError("what is a t?")
        return Letters.verify(self, task, rollout)

    def reference(self, task: Task[str]) -> str:
        return "a" * 6


class Answered(Letters):
    """The same with an answer that passes."""

    def reference(self, task: Task[str]) -> str:
        return "a" * 6


class Audited(Letters):
    """With a check that falls where the reward rises."""

    def audit(self, task: Task[str], rollout: Rollout) -> float | None:
        return 1 - rollout.text.count(task.data) / max(1, len(rollout.text))


class Digits(Letters):
    """Pays for the digit that the prompt asks for, and not for the same answer to every task."""

    answer_in_prompt = True
    max_new_tokens = 4

    def task(self, key: TaskKey) -> Task[str]:
        digit = str(key.rng().randrange(10))
        return Task(key, f"digit {digit} of {key.rng('other').randrange(1000)}:", digit)

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        right = rollout.text.strip() == task.data
        return Verdict({"share": Reward(float(right))}, passed=right, answer=rollout.text)

    def reference(self, task: Task[str]) -> str:
        return task.data


class Hollow(Digits):
    """The same with a hole: silence passes."""

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        right = rollout.text.strip() in ("", task.data)
        return Verdict({"share": Reward(float(right))}, passed=right, answer=rollout.text)


class Beginning(Digits):
    """The same with a hole that the author has a cheat for: only the beginning is looked at."""

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        right = rollout.text.startswith(task.data)
        return Verdict({"share": Reward(float(right))}, passed=right, answer=rollout.text)

    def cheats(self, task: Task[str]) -> tuple[str, ...]:
        return (f"{task.data}123456789",)
