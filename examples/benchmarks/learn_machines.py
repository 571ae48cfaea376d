"""Train a model from scratch to build cars on two CPU cores: a cold start, then GRPO.

    python examples/benchmarks/learn_machines.py --out runs/machines [--seed 0] [--shuffle]
        [--estimator maxk]

The tokenizer's tokens are frequent pieces of construction trees, and the model has 3.2 million
random weights. `grpo sft` trains on valid machines: half are cars of a few designs, half are grown
at random from beams, logs and powered wheels, of which few drive. Then GRPO runs on `besiege/car`
with the recipe `besiege-small`. Every machine is simulated twice. The mean distance is that of the
valid machines, as in the tables of the paper. (Random machines alone, --cars 0, are too rarely
rewarded for driving: the policy learns to build only the root, which is valid.)

The bars: validity gains at least 10 points and the mean distance grows by a factor of at least 1.3,
within 10 minutes of GRPO; with rewards shuffled within each group (--shuffle) neither does.
--estimator maxk trains the best of 8 instead of the mean; `grpo eval --env besiege/car --run RUN
--tasks 16 --samples 64` reports the best of 64 of either with its error (max@64). A finished run in
the folder is read, an interrupted one is resumed. Exits with 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from small import make_model, pieces, train_or_read

from grpo_core import Message, TaskKey
from grpo_core.figures.gains import paired_gain
from grpo_core.plugins.host import PluginHost
from grpo_core.runs.folder import RunFolder
from grpo_env_besiege.cold_start import BEAM, LOG, WHEEL, compact
from grpo_env_besiege.env import BesiegeConfig, Car
from grpo_env_besiege.growing import grow

EXAMPLES = 3000
"""Number of machines of the cold start."""
CARS = 0.5
SIZES = (5, 8)
KINDS = (BEAM, LOG, WHEEL)
POINTS, FACTOR, MINUTES = 0.1, 1.3, 10.0


def write_examples(path: Path, seed: int, *, cars: float) -> Iterator[str]:
    """Write machines with their prompts for `grpo sft --data`, and yield the machines.

    Args:
        cars: Share of the machines that are cars.
    """
    env = Car(BesiegeConfig(prompt="short"))
    with path.open("w", encoding="utf-8") as file:
        for index in range(EXAMPLES):
            task = env.task(TaskKey("besiege/car", "train", index, seed, 0.0))
            rng = task.key.rng("cold start")
            answer = (
                env.reference(task)
                if rng.random() < cars
                else compact(grow(rng, size=rng.randint(*SIZES), types=KINDS))
            )
            if answer is None:
                continue
            prompt = [
                {"role": "user", "content": message.content}
                for message in task.prompt
                if isinstance(message, Message)
            ]
            file.write(json.dumps({"prompt": prompt, "completion": answer}) + "\n")
            yield answer


@dataclass(frozen=True)
class Measured:
    """Held-out rollouts at a step, by task."""

    valid: Mapping[int, float]
    """1 for a valid machine, else 0."""
    metres: Mapping[int, float]
    """Distance of the valid machines."""

    @classmethod
    def of(cls, folder: Path, step: int) -> Measured:
        """Read the rollouts of a run at a step."""
        lines = [
            line
            for line in RunFolder.open(folder).rollout_lines()
            if line["step"] == step and line["key"]["split"] == "eval"
        ]
        metrics_by_task = {line["key"]["index"]: line["verdict"]["metrics"] for line in lines}
        metres = {
            key: max(0.0, metrics["performance"])
            for key, metrics in metrics_by_task.items()
            if not metrics["invalid"]
        }
        return cls({key: float(key in metres) for key in metrics_by_task}, metres)

    @property
    def distances(self) -> Mapping[int, float]:
        """The distance of all machines, which is 0 for an invalid one."""
        return {key: self.metres.get(key, 0.0) for key in self.valid}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/machines"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--warm-steps", type=int, default=200, help="steps of the cold start")
    parser.add_argument("--steps", type=int, default=45, help="steps of GRPO")
    parser.add_argument("--cars", type=float, default=CARS, help="share of cars in the cold start")
    parser.add_argument("--tasks", type=int, default=128, help="held-out tasks of an evaluation")
    parser.add_argument("--shuffle", action="store_true", help="the control: shuffled rewards")
    parser.add_argument("--estimator", choices=["gdpo", "maxk"], default="gdpo")
    options = parser.parse_args()
    folder = options.out / f"seed-{options.seed}"
    if not (folder / "model").is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        make_model(
            folder / "model",
            pieces(write_examples(folder / "machines.jsonl", options.seed, cars=options.cars), 512),
            options.seed,
        )
    recipe: Mapping[str, Any] = PluginHost().load("recipe", "besiege-small")
    task: Mapping[str, Any] = {
        "seed": options.seed,
        "model": {"dtype": "float32"},
        "eval": {"tasks": options.tasks},
    }
    warm = {
        "method": "sft",
        "steps": options.warm_steps,
        "model": {"name": str(folder / "model")},
        "sft": {"batch_size": 32, "data": str((folder / "machines.jsonl").absolute())},
        "optimizer": {"lr": 1e-3, "betas": [0.9, 0.95], "max_grad_norm": 0.3},
        "schedule": {"warmup": 20},
    }
    refined = {
        "steps": options.steps,
        "model": {"name": str(folder / "warm")},
        "trainer": {"shuffle_rewards": options.shuffle},
        "advantage": {
            "name": options.estimator,
            **({"k": 8} if options.estimator == "maxk" else {}),
        },
    }
    train_or_read([recipe, task, warm, {"method": "sft"}], folder / "warm")
    run = folder / ("shuffled" if options.shuffle else options.estimator)
    lines = train_or_read([recipe, task, refined], run)
    minutes = sum(line.get("time/step", 0.0) + line.get("eval/seconds", 0.0) for line in lines) / 60
    last = max(line["step"] for line in lines if "eval/pass_rate" in line)
    before, after = Measured.of(run, 0), Measured.of(run, last)
    valid, distance = (
        paired_gain(before.valid, after.valid),
        paired_gain(before.distances, after.distances),
    )
    assert valid is not None
    assert distance is not None
    first, then = (
        fmean(measured.metres.values()) if measured.metres else 0.0 for measured in (before, after)
    )
    print(f"seed {options.seed}, {run.name}: {last} steps in {minutes:.1f} minutes")
    print(
        f"valid {valid.before:.1%} -> {valid.after:.1%}, {valid.mean:+.1%} "
        f"({valid.low:+.1%} .. {valid.high:+.1%})"
    )
    print(f"mean distance of the valid {first:.2f} -> {then:.2f} m")
    print(
        f"of all {distance.before:.2f} -> {distance.after:.2f} m, {distance.mean:+.2f} "
        f"({distance.low:+.2f} .. {distance.high:+.2f})"
    )
    print(f"best {max(before.distances.values()):.1f} -> {max(after.distances.values()):.1f} m")
    if options.shuffle:
        return 0 if valid.low <= 0 and distance.low <= 0 else 1
    return 0 if valid.mean >= POINTS and then >= FACTOR * first and minutes <= MINUTES else 1


if __name__ == "__main__":
    sys.exit(main())
