"""Train from Python: a task of a few lines, a small model, two CPU cores.

    python examples/03_train_on_cpu.py --steps 20

The same code works in a notebook, whose event loop is running already. Needs the extra [train].
"""

from __future__ import annotations

import argparse
from string import ascii_lowercase

from grpo_core import (
    Environment,
    Message,
    Reward,
    Rollout,
    Task,
    TaskKey,
    Trainer,
    Verdict,
)

EXAMPLES = (
    Message("user", "List: pear fig"),
    Message("assistant", "fig pear"),
    Message("user", "List: sun moon"),
    Message("assistant", "moon sun"),
)


class Swap(Environment[str]):
    """Write two words in the other order. The reward is the share of words in the right place."""

    max_new_tokens = 12
    levels = False

    def task(self, key: TaskKey) -> Task[str]:
        rng = key.rng()
        # No held-out task is trained on.
        first = rng.choice("abcdefghijklm" if key.split == "train" else "nopqrstuvwxyz")
        words = [first + rng.choice("aeiou") + rng.choice(ascii_lowercase) for _ in range(2)]
        return Task(
            key, (*EXAMPLES, Message("user", f"List: {' '.join(words)}")), " ".join(reversed(words))
        )

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        words, expected = rollout.text.split(), task.data.split()
        right = sum(a == b for a, b in zip(words, expected, strict=False)) / max(
            len(words), len(expected)
        )
        return Verdict(
            {"reward": Reward(right)}, passed=right == 1, answer=rollout.text.strip()[:100]
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m", help="a hub id, a folder or an alias")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", help="the run's folder; default: runs/swap-DATE-TIME")
    arguments = parser.parse_args()
    trainer = Trainer(
        Swap(),
        model=arguments.model,
        steps=arguments.steps,
        settings={"eval.tasks": 32},
        folder=arguments.out,
    )

    # Look at rewards before training; this writes nothing.
    for group in trainer.verify(trainer.sample(2, attempts=3)):
        print(f"{group.task.prompt[-1].content!r}, wanted {group.task.data!r}:")
        for rollout, verdict in zip(group.rollouts, group.verdicts, strict=True):
            print(f"  {verdict.total:.2f}  {rollout.text!r}")

    trainer.run()
    print(f"everything is in {trainer.folder}")


if __name__ == "__main__":
    main()
