"""Train from Python: a task of a few lines, a small model, two CPU cores.

    python examples/03_train_on_cpu.py --steps 20

The same cells work in a notebook, whose event loop is running already. Needs the extra [train].
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
    build_config,
)

SHOWN = (
    Message("user", "List: pear fig"),
    Message("assistant", "fig pear"),
    Message("user", "List: sun moon"),
    Message("assistant", "moon sun"),
)


class Swap(Environment[str]):
    """Two words are to be said in the other order. Reward: the share of words in their place."""

    max_new_tokens = 12
    trusted = True  # a class of this very file cannot be imported by a worker process

    def task(self, key: TaskKey) -> Task[str]:
        rng = key.rng()
        first = rng.choice(
            "abcdefghijklm" if key.split == "train" else "nopqrstuvwxyz"
        )  # no held-out task is trained on
        words = [first + rng.choice("aeiou") + rng.choice(ascii_lowercase) for _ in range(2)]
        return Task(
            key, (*SHOWN, Message("user", f"List: {' '.join(words)}")), " ".join(reversed(words))
        )

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        said, wanted = rollout.text.split(), task.data.split()
        right = sum(a == b for a, b in zip(said, wanted, strict=False)) / max(
            len(said), len(wanted)
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
    parser.add_argument("--out", help="the run's folder; runs/swap-DATE-TIME if left out")
    arguments = parser.parse_args()
    config = build_config(
        [
            {
                "environment": "swap",
                "model": {"name": arguments.model},
                "steps": arguments.steps,
                "eval": {"tasks": 32},
            }
        ],
    )
    trainer = Trainer(config, Swap(), folder=arguments.out)

    for group in trainer.verify(
        trainer.sample(2, attempts=3)
    ):  # look before training: nothing is written
        print(f"{group.task.prompt[-1].content!r}, wanted {group.task.data!r}:")
        for rollout, verdict in zip(group.rollouts, group.verdicts, strict=True):
            print(f"  {verdict.total:.2f}  {rollout.text!r}")

    for name, gain in trainer.run().items():
        print(
            f"{name}: {gain.before:.3f} -> {gain.after:.3f} ({gain.mean:+.3f}, 95 % interval {gain.low:+.3f} .. {gain.high:+.3f})"
        )
    print(f"everything is in {trainer.folder.path}")


if __name__ == "__main__":
    main()
