"""Write an environment, and check whether it can be trusted with a run.

This needs no model, no GPU and no torch.

python examples/02_write_an_environment.py
"""

from itertools import count
from string import ascii_lowercase

from grpo_core import Environment, Message, Reward, Rollout, Task, TaskKey, Verdict, held_out
from grpo_core.testing import check_environment


class Reverse(Environment[str]):
    max_new_tokens = 16

    def task(self, key: TaskKey) -> Task[str]:
        rng, size = key.rng(), 3 + round(6 * key.level)  # a task is a pure function of its key
        words = ("".join(rng.choices(ascii_lowercase, k=size)) for _ in count())
        # No held-out word is trained on.
        word = next(w for w in words if held_out(w) == (key.split == "eval"))
        return Task(
            key, (Message("user", f"Write {word} backwards. Reply with one word."),), word[::-1]
        )

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        answer = rollout.text.strip()
        right = sum(a == b for a, b in zip(answer, task.data, strict=False)) / max(
            len(answer), len(task.data)
        )
        return Verdict({"reward": Reward(right)}, passed=right == 1, answer=answer[:100])

    def reference(self, task: Task[str]) -> str:  # must pass: the checks try it
        return task.data


if __name__ == "__main__":
    report = check_environment(Reverse())
    print(report)
    raise SystemExit(len(report.problems))
