"""Show that a run learns with vLLM as it does with the built-in engine: SmolLM2-135M on arithmetic.

    python examples/benchmarks/vllm_curve.py --python vllm-env/bin/python [--out runs/vllm-curve]

Each seed is trained with both samplers, in float32; --vllm-seeds leaves some to the built-in
engine alone, which is faster on a CPU. Finished runs in --out are read and not
repeated; interrupted ones are resumed. The bar: the gain of held-out reward with vLLM lies within
the spread that the seeds have with the built-in engine, widened by the standard error of one run's
gain. Exits with 1 if it is missed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from grpo_core.report.statistics import paired_gain
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.lines import read_lines

COMMON = ["--env", "arithmetic", "--dtype", "float32", "--max-new-tokens", "12"]
TASKS, WINDOW = 339, 10


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
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument(
        "--vllm-seeds", type=int, nargs="*", help="seeds that vLLM trains, too; all if left out"
    )
    parser.add_argument("--steps", type=int, default=60)
    arguments = parser.parse_args()
    samplers = {
        "builtin": [],
        "vllm": ["sampler.name=vllm", f"sampler.settings.python={arguments.python}"],
    }
    results: dict[str, list[Result]] = {name: [] for name in samplers}
    for seed in arguments.seeds:
        for name, settings in samplers.items():
            if name == "vllm" and seed not in (arguments.vllm_seeds or arguments.seeds):
                continue
            folder = arguments.out / f"{name}-{seed}"
            train(folder, settings, seed=seed, steps=arguments.steps)
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


def train(folder: Path, settings: list[str], *, seed: int, steps: int) -> None:
    """Start, resume or skip a run."""
    if RunFolder(folder).finished:
        return
    sets = [part for text in (*settings, f"eval.tasks={TASKS}") for part in ("--set", text)]
    fresh = [*COMMON, "--seed", str(seed), "--steps", str(steps), *sets, "--out", str(folder)]
    begun = (folder / "config.json").exists()
    command = ["run", *(["--resume", str(folder)] if begun else fresh)]
    program = [sys.executable, "-c", "from grpo_core.cli import main; main()"]
    subprocess.run([*program, *command], check=True)


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
