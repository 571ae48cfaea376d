"""Train a small model from scratch on work in a shell: on references first, then by GRPO.

    python examples/benchmarks/learn_terminal.py --out runs/terminal [--seed 0] [--shuffle]

The model has random weights, and the tokenizer's tokens are frequent pieces of the task's texts.
`grpo sft` trains on the references of level 0 of the environment `terminal` until about a third of
the held-out jobs are done; then GRPO runs every command in a session of the sandbox. The bars: at
least 10 points more held-out jobs done, with an interval above 0, within 30 minutes of GRPO; with
rewards shuffled within each group (--shuffle) the interval of the gain contains 0 or lies below. A
finished run in the folder is read, an interrupted one is resumed. Exits with 1 if the bar is
missed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from small import make_model, passed_tasks, pieces, train_or_read

from grpo_core import TaskKey
from grpo_core.report.statistics import paired_gain
from grpo_env_terminal.env import Terminal

WARM_REWARD = 0.3
POINTS, MINUTES = 0.1, 30.0


def texts() -> Iterator[str]:
    """Yield prompts, references and contents of files, for the tokenizer."""
    env = Terminal()
    for index in range(2000):
        task = env.task(TaskKey("terminal", "train", index, 0, 0.0))
        yield from (message.content for message in task.prompt if not isinstance(message, str))
        yield from env.reference(task)
        yield from (content for _, content in task.data.files)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/terminal"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--warm-steps", type=int, default=1000, help="most steps of the warm start")
    parser.add_argument("--steps", type=int, default=40, help="steps of GRPO")
    parser.add_argument("--tasks", type=int, default=256, help="held-out tasks of an evaluation")
    parser.add_argument("--shuffle", action="store_true", help="the control: shuffled rewards")
    options = parser.parse_args()
    folder = options.out / f"seed-{options.seed}"
    if not (folder / "model").is_dir():
        make_model(folder / "model", pieces(texts(), 640), options.seed)
    task: Mapping[str, Any] = {
        "environment": "terminal",
        "seed": options.seed,
        "model": {"dtype": "float32"},
        "lora": {"enabled": False},
        "sampling": {"max_new_tokens": 24, "max_dialogue_tokens": 160},
        "eval": {"tasks": options.tasks},
    }
    warm = {
        "method": "sft",
        "steps": options.warm_steps,
        "model": {"name": str(folder / "model")},
        "sft": {"batch_size": 32},
        "optimizer": {"lr": 1e-3, "betas": [0.9, 0.95], "max_grad_norm": 0.3},
        "schedule": {"warmup": 20},
        "eval": {"every": 3, "tasks": 64},
        "stop": {"reward": WARM_REWARD},
    }
    refined = {
        "steps": options.steps,
        "prompts_per_step": 16,
        "group_size": 8,
        "model": {"name": str(folder / "warm")},
        "optimizer": {"lr": 2e-4},
        "kl": {"beta": 0.04},
        "trainer": {"minibatches": 2, "shuffle_rewards": options.shuffle},
        "advantage": {"name": "grpo"},
    }
    train_or_read([task, warm, {"method": "sft"}], folder / "warm")
    run = folder / ("shuffled" if options.shuffle else "grpo")
    lines = train_or_read([task, refined], run)
    minutes = sum(line.get("time/step", 0.0) + line.get("eval/seconds", 0.0) for line in lines) / 60
    gain = paired_gain(*passed_tasks(run))
    assert gain is not None
    print(
        f"seed {options.seed}, {run.name}: {gain.before:.1%} -> {gain.after:.1%} of {gain.tasks} "
        f"held-out jobs are done, {gain.mean:+.1%} ({gain.low:+.1%} .. {gain.high:+.1%}), "
        f"{minutes:.1f} minutes of GRPO"
    )
    learned = gain.mean >= POINTS and gain.low > 0 and minutes <= MINUTES
    return 0 if (gain.low <= 0 if options.shuffle else learned) else 1


if __name__ == "__main__":
    sys.exit(main())
