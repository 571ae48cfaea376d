"""Train a small model from scratch on FizzBuzz programs: on references first, then by GRPO.

    python examples/benchmarks/learn_programs.py --out runs/programs [--seed 0] [--shuffle]
    python examples/benchmarks/learn_programs.py --name weighted-once --set kl.importance=false

The model has random weights, and the tokenizer's tokens are frequent pieces of the task's texts.
`grpo sft` trains on the environment's references until about a third of the held-out programs pass;
then GRPO runs every program on new cases in containers. The bars: at least 10 points more held-out
programs pass, within 30 minutes of GRPO; with rewards shuffled within each group (--shuffle) the
interval of the gain contains 0 or lies below. --set changes a setting of GRPO, in a run of the
folder --name, which the last line then compares with the run of the defaults. A finished run in the
folder is read, an interrupted one is resumed. Exits with 1 if the bar is missed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from small import make_model, passed_tasks, pieces, train_or_read

from grpo_core import TaskKey
from grpo_core.config.overrides import parse_setting
from grpo_core.report.statistics import paired_gain
from grpo_env_fizzbuzz.env import FizzBuzz

WARM_REWARD = 0.5
POINTS, MINUTES = 0.1, 30.0


def texts(difficulty: int) -> Iterator[str]:
    """Yield prompts and references, for the tokenizer."""
    env = FizzBuzz(FizzBuzz.Config(difficulty=difficulty))
    for index in range(2000):
        task = env.task(TaskKey("fizzbuzz", "train", index, 0, 0.0))
        yield task.prompt[-1].content
        yield env.reference(task)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/programs"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--difficulty",
        type=int,
        default=2,
        help="of FizzBuzz, 1 to 10; 3 needs twice the warm start",
    )
    parser.add_argument("--warm-steps", type=int, default=1000, help="most steps of the warm start")
    parser.add_argument("--steps", type=int, default=60, help="steps of GRPO")
    parser.add_argument("--tasks", type=int, default=256, help="held-out tasks of an evaluation")
    parser.add_argument("--shuffle", action="store_true", help="the control: shuffled rewards")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings")
    parser.add_argument("--name", help="folder of the run; default: grpo, or shuffled")
    options = parser.parse_args()
    name = options.name or ("shuffled" if options.shuffle else "grpo")
    folder = options.out / f"difficulty-{options.difficulty}" / f"seed-{options.seed}"
    if not (folder / "model").is_dir():
        make_model(folder / "model", pieces(texts(options.difficulty), 640), options.seed)
    task: Mapping[str, Any] = {
        "environment": "fizzbuzz",
        "env": {"difficulty": options.difficulty},
        "seed": options.seed,
        "model": {"dtype": "float32"},
        "lora": {"enabled": False},
        "sampling": {"max_new_tokens": 96},
        "eval": {"tasks": options.tasks},
    }
    warm = {
        "method": "sft",
        "steps": options.warm_steps,
        "model": {"name": str(folder / "model")},
        "sft": {"batch_size": 32},
        "optimizer": {"lr": 1e-3, "betas": [0.9, 0.95], "max_grad_norm": 0.3},
        "schedule": {"warmup": 20},
        "eval": {"every": 10, "tasks": 64},
        "stop": {"reward": WARM_REWARD},
    }
    refined = {
        "steps": options.steps,
        "prompts_per_step": 16,
        "group_size": 16,
        "model": {"name": str(folder / "warm")},
        "optimizer": {"lr": 2e-4},
        "kl": {"beta": 0.04},
        "trainer": {"minibatches": 2, "shuffle_rewards": options.shuffle},
        "advantage": {"name": "grpo"},
    }
    settings = [parse_setting(text) for text in options.settings]
    train_or_read([task, warm, {"method": "sft"}], folder / "warm")
    run = folder / name
    lines = train_or_read([task, refined, *settings], run)
    minutes = sum(line.get("time/step", 0.0) + line.get("eval/seconds", 0.0) for line in lines) / 60
    before, after = passed_tasks(run)
    gain = paired_gain(before, after)
    assert gain is not None
    print(
        f"seed {options.seed}, {run.name}: {gain.before:.1%} -> {gain.after:.1%} of {gain.tasks} "
        f"held-out programs pass, {gain.mean:+.1%} ({gain.low:+.1%} .. {gain.high:+.1%}), "
        f"{minutes:.1f} minutes of GRPO"
    )
    if options.name and (folder / "grpo" / "final").is_dir():
        difference = paired_gain(after, passed_tasks(folder / "grpo")[1])
        assert difference is not None
        print(
            f"the run of the defaults against it: {difference.mean:+.1%} "
            f"({difference.low:+.1%} .. {difference.high:+.1%})"
        )
    return (
        0
        if (gain.low <= 0 if options.shuffle else gain.mean >= POINTS and minutes <= MINUTES)
        else 1
    )


if __name__ == "__main__":
    sys.exit(main())
