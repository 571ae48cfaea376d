"""Train a model that is far too small on GSM8K: it learns the format, and the log shows no more.

    python examples/benchmarks/learn_format.py --path FOLDER --out runs/format [--seed 0]

SmolLM2-135M takes 60 steps with the five fixed rewards on the published problems (FOLDER has their
train.jsonl and test.jsonl), with one solved example in the prompt; the learning rate is the
default, the rest is the recipe `gsm8k-xml` at a size for two cores. The bar: the strict format on
held-out problems gains at least 20 points. Accuracy is reported, strict and lenient, and has no
bar. A finished run in the folder is read, an interrupted one is resumed. Exits with 1 if the bar is
missed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from small import train_or_read

from grpo_core.plugins.host import PluginHost

POINTS = 0.2
REPORTED = {
    "strict format": "eval/reward/strict_format",
    "soft format": "eval/reward/soft_format",
    "accuracy, strict": "eval/env/accuracy/strict",
    "accuracy, lenient": "eval/env/accuracy/lenient",
    "reward": "eval/reward/mean",
    "words of reasoning": "eval/env/reasoning/words",
    "constant share of the reward": "eval/reward/constant_share",
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--path",
        type=Path,
        required=True,
        help="folder with the published train.jsonl and test.jsonl",
    )
    parser.add_argument("--out", type=Path, default=Path("runs/format"))
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tasks", type=int, default=128, help="held-out problems of an evaluation")
    options = parser.parse_args()
    recipe: Mapping[str, Any] = PluginHost().load("recipe", "gsm8k-xml")
    small = {
        "steps": options.steps,
        "epochs": None,
        "seed": options.seed,
        "group_size": 8,
        "prompts_per_step": 4,
        "model": {"name": options.model},
        "env": {"path": str(options.path), "example": True},
        "sampling": {"max_new_tokens": 160},
        "optimizer": {"lr": 3e-4},
        "eval": {"tasks": options.tasks},
    }
    lines = train_or_read([recipe, small], options.out / f"seed-{options.seed}")
    before, *_, after = (line for line in lines if "eval/pass_rate" in line)
    steps = [line for line in lines if "time/step" in line]
    for name, key in REPORTED.items():
        if key in before:
            print(f"{name}: {before[key]:.3f} -> {after[key]:.3f}")
    spent = {
        name: sum(line[f"time/{name}"] for line in steps)
        for name in ("rollout", "verify", "update")
    }
    print(
        f"{len(steps)} steps in {sum(line['time/step'] for line in steps) / 60:.1f} minutes: "
        + ", ".join(f"{n} {s:.0f} s" for n, s in spent.items())
    )
    return (
        0
        if after["eval/reward/strict_format"] - before["eval/reward/strict_format"] >= POINTS
        else 1
    )


if __name__ == "__main__":
    sys.exit(main())
