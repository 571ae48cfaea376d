"""Show that a run learns with vLLM as it does with the built-in engine: sums, in 60 steps.

    python examples/benchmarks/vllm_curve.py --python vllm-env/bin/python [--out runs/vllm-curve]

The model and the task are those of `learn_small.py`: 3.2 million weights after a warm start that
answers some of the sums; `--model smollm2-135m` takes a pretrained one, which needs hours on two
cores. Each seed is trained with both samplers, in float32; --vllm-seeds leaves some seeds to the
built-in engine alone. Finished runs in --out are read and not repeated; interrupted ones are
resumed. The bar: the gain of held-out reward with vLLM lies within the spread that the seeds have
with the built-in engine, widened by the standard error of one run's gain. Exits with 1 if it is
missed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from learn_small import warm_start, write_examples
from small import characters, make_model, train_or_read

from grpo_core.figures.gains import paired_gain
from grpo_core.plugins.host import PluginHost
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.lines import read_lines

TASKS, WINDOW = 339, 10
WARM_STEPS = 300


@dataclass(frozen=True)
class Result:
    """The result of a run."""

    gain: float
    error: float
    """Standard error of the gain."""
    curve: list[float]
    """Mean reward of each ten steps."""
    gap: float
    """Largest mean difference from the trainer's log-probs in a step, in nats per token."""
    seconds: dict[str, float]
    """Median seconds of a step, in all and by phase."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", required=True, help="the Python that has vLLM")
    parser.add_argument("--out", type=Path, default=Path("runs/vllm-curve"), help="folder of runs")
    parser.add_argument("--model", default="small", help="small, or the name of a pretrained model")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument(
        "--vllm-seeds", type=int, nargs="*", help="seeds that vLLM trains, too; all if left out"
    )
    parser.add_argument("--steps", type=int, default=60)
    arguments = parser.parse_args()
    samplers: dict[str, dict[str, Any]] = {
        "builtin": {},
        "vllm": {"sampler": {"name": "vllm", "settings": {"python": arguments.python}}},
    }
    common = small(arguments.out) if arguments.model == "small" else pretrained(arguments.model)
    results: dict[str, list[Result]] = {name: [] for name in samplers}
    for seed in arguments.seeds:
        for name, settings in samplers.items():
            if name == "vllm" and seed not in (arguments.vllm_seeds or arguments.seeds):
                continue
            folder = arguments.out / f"{name}-{seed}"
            train_or_read([*common, {"seed": seed, "steps": arguments.steps, **settings}], folder)
            result = read(folder)
            results[name].append(result)
            print(row(name, seed, result), flush=True)
    spread = [result.gain for result in results["builtin"]]
    margin = max(result.error for result in results["builtin"])
    gain = fmean(result.gain for result in results["vllm"])
    met = min(spread) - margin <= gain <= max(spread) + margin
    print(
        f"gain with vLLM {gain:+.3f}, with the built-in engine {min(spread):+.3f} .. "
        f"{max(spread):+.3f} (standard error {margin:.3f}): {'met' if met else 'MISSED'}"
    )
    return 0 if met else 1


def pretrained(model: str) -> list[Mapping[str, Any]]:
    """Return the settings of a run with a pretrained model."""
    return [
        PluginHost().load("recipe", "arithmetic"),
        {
            "model": {"name": model, "dtype": "float32"},
            "sampling": {"max_new_tokens": 12},
            "eval": {"tasks": TASKS},
        },
    ]


def small(out: Path) -> list[Mapping[str, Any]]:
    """Return the settings of a run with the small model, which is given its warm start first."""
    recipe: Mapping[str, Any] = PluginHost().load("recipe", "arithmetic")
    if not (out / "model").is_dir():
        make_model(out / "model", characters(), 0)
        write_examples(out / "answers.jsonl", 0)
    task = {
        "env": {"shots": 0},
        "sampling": {"max_new_tokens": 24, "max_rows": 384},
        "eval": {"tasks": TASKS},
    }
    train_or_read([recipe, task, warm_start(out, WARM_STEPS)], out / "warm")
    run = {
        "prompts_per_step": 24,
        "model": {"name": str(out / "warm"), "dtype": "float32"},
        "lora": {"enabled": True, "r": 32, "alpha": 64},
        "optimizer": {"lr": 1e-3, "betas": [0.9, 0.95]},
        "schedule": {"name": "linear", "warmup": 10},
        "trainer": {"mu": 1, "minibatches": 2},
    }
    return [recipe, task, run]


def read(folder: Path) -> Result:
    """Read the result of a finished run."""
    steps = [line for line in read_lines(folder / "metrics.jsonl") if "loss" in line]
    last = steps[-1]["step"]
    gain = paired_gain(held_out(folder, step=0), held_out(folder, step=last))
    assert gain is not None, f"{folder} holds no two evaluations"
    rewards = [line["reward/mean"] for line in steps]
    return Result(
        gain=gain.mean,
        error=(gain.high - gain.low) / (2 * 1.96),
        curve=[fmean(rewards[i : i + WINDOW]) for i in range(0, len(rewards), WINDOW)],
        gap=max(line["sampling/logprob_gap"] for line in steps),
        seconds={
            phase: sorted(line[f"time/{phase}"] for line in steps)[len(steps) // 2]
            for phase in ("step", "sync", "rollout", "update")
        },
    )


def held_out(folder: Path, *, step: int) -> dict[int, float]:
    """Return the reward of each held-out task, by its index."""
    return {
        line["key"]["index"]: sum(
            part["value"] * part["weight"] for part in line["verdict"]["rewards"].values()
        )
        for line in RunFolder(folder).rollout_lines()
        if line["step"] == step
        and line["key"]["split"] == "eval"
        and line["verdict"]["error"] is None
    }


def row(name: str, seed: int, result: Result) -> str:
    curve = " ".join(f"{reward:.2f}" for reward in result.curve)
    seconds = ", ".join(f"{phase} {value:.2f} s" for phase, value in result.seconds.items())
    return (
        f"{name} seed {seed}: gain {result.gain:+.3f} (error {result.error:.3f}), reward by tens "
        f"of steps {curve}, gap {result.gap:.2g}, {seconds}"
    )


if __name__ == "__main__":
    sys.exit(main())
