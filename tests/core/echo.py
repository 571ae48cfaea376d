"""The smallest environment, for the tests of whatever needs some environment."""

from collections.abc import Sequence

from grpo_core import Environment, Reward, Rollout, Task, TaskKey, Verdict


class Echo(Environment[str]):
    """Say the word."""

    trusted = True
    levels = False
    answer_in_prompt = True

    def task(self, key: TaskKey) -> Task[str]:
        word = f"{key.split}-{key.rng().randrange(10**6)}"
        return Task(key, f"Say {word} and nothing else.", word)

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        said = rollout.text.strip() == task.data
        return Verdict(
            rewards={"reward": Reward(float(said))}, passed=said, answer=rollout.text.strip()[:100]
        )

    def reference(self, task: Task[str]) -> str:
        return task.data

    def cheats(self, task: Task[str]) -> Sequence[str]:
        return (f"{task.data} {task.data}", task.data.upper())
