"""Does a small model learn as well from older rollouts, and how much time do they save?

    OMP_NUM_THREADS=1 python examples/benchmarks/staleness.py --out runs/staleness

The task and the model are those of `learn_small.py`: sums, 3.2 million weights, a warm start that
answers some of them. From one warm start three runs of different seeds are trained at each of
`pipeline.max_staleness` 0, 1 and 4. The sampler is a process with a copy of the weights
(`sampling_process.py`), so that sampling and updates can overlap on two cores with one thread each;
`--builtin` takes the built-in sampler, with which only verification overlaps.

The bar: at each staleness the mean of the final held-out scores is not below the lowest of the
synchronous seeds. Time per step is the median; it needs two idle cores to mean anything. Finished
runs in the folder are read, an interrupted one is resumed. The lengths of `learn_small.py` are
`--warm-steps 500 --steps 200 --prompts 48`; the default is about a sixth of that. Exits with 1 if
the bar is missed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from learn_small import warm_start, write_examples
from sampling_process import ProcessSampler
from small import characters, make_model, train_or_read

from grpo_core.config.overrides import build_config
from grpo_core.plugins.host import PluginHost

HEADER = (
    "| max_staleness | seed | exact before | exact after | s/step | staleness, mean | truncated "
    "| trainer waits, s | sampler waits, s |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
)


@dataclass(frozen=True, slots=True)
class Result:
    """Hold the scores and times of one run."""

    max_staleness: int
    seed: int
    before: float
    after: float
    """Share of the held-out tasks that are exact, before and after training."""
    seconds: float
    """Median time per step."""
    means: Sequence[float]
    """Mean staleness, share of truncated weights, and seconds that each side waits in a step."""

    @classmethod
    def of(cls, max_staleness: int, seed: int, lines: Sequence[Mapping[str, Any]]) -> Result:
        """Return the result of a run from its metrics."""
        exact = [line["eval/pass_rate"] for line in lines if "eval/pass_rate" in line]
        steps = [line for line in lines if "time/step" in line]
        names = (
            "staleness/mean",
            "sampling/truncated",
            "time/trainer_wait",
            "time/sampler_wait",
        )
        return cls(
            max_staleness,
            seed,
            exact[0],
            exact[-1],
            median(line["time/step"] for line in steps),
            [fmean(line.get(name) or 0.0 for line in steps) for name in names],
        )

    def __str__(self) -> str:
        staleness, truncated, trainer, sampler = self.means
        return (
            f"| {self.max_staleness} | {self.seed} | {self.before:.1%} | {self.after:.1%} "
            f"| {self.seconds:.2f} | {staleness:.2f} | {truncated:.2%} | {trainer:.2f} "
            f"| {sampler:.2f} |"
        )


def settings(options: argparse.Namespace, start: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of the warm start and of the runs, beside those of the recipe."""
    task = {
        "env": {"shots": 0},
        "model": {"dtype": "float32"},
        "sampling": {"max_new_tokens": 24, "max_rows": 384},
        "eval": {"tasks": options.tasks},
    }
    warm = task | warm_start(start, options.warm_steps)
    run = {
        **task,
        "steps": options.steps,
        "prompts_per_step": options.prompts,
        "model": {"name": str(start / "warm"), "dtype": "float32"},
        "optimizer": {"lr": 3e-4, "betas": [0.9, 0.95]},
        "schedule": {"name": "linear", "warmup": 10},
        "trainer": {"mu": 1, "minibatches": 2},
        "checkpoint": {"every": 20},
    }
    return warm, run


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/staleness"))
    parser.add_argument("--warm-steps", type=int, default=300, help="steps of the warm start")
    parser.add_argument("--steps", type=int, default=60, help="steps of each run")
    parser.add_argument("--prompts", type=int, default=24, help="prompts per step")
    parser.add_argument("--builtin", action="store_true", help="sample with the built-in sampler")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 1, 4])
    parser.add_argument("--tasks", type=int, default=339, help="held-out tasks of an evaluation")
    options = parser.parse_args()
    start = options.out / f"{options.warm_steps}-{options.steps}-{options.prompts}"
    if not (start / "model").is_dir():
        make_model(start / "model", characters(), 0)
        write_examples(start / "answers.jsonl", 0)
    recipe: Mapping[str, Any] = PluginHost().load("recipe", "arithmetic")
    warm, run = settings(options, start)
    train_or_read([recipe, warm], start / "warm")
    results = []
    print(HEADER)
    for seed in range(options.seeds):
        for bound in options.staleness:
            layers = [recipe, run, {"seed": seed, "pipeline": {"max_staleness": bound}}]
            kind = "builtin" if options.builtin else "process"
            lines = train_or_read(
                layers,
                start / f"{kind}-{bound}-{seed}",
                sampler=None if options.builtin else ProcessSampler(build_config(layers)),
            )
            results.append(Result.of(bound, seed, lines))
            print(results[-1], flush=True)
    scores = {
        bound: [result.after for result in results if result.max_staleness == bound]
        for bound in options.staleness
    }
    lowest = min(scores[options.staleness[0]])
    for bound, values in scores.items():
        seconds = median(result.seconds for result in results if result.max_staleness == bound)
        print(
            f"max_staleness={bound}: {fmean(values):.1%} exact ({min(values):.1%} to "
            f"{max(values):.1%}), {seconds:.2f} s/step"
        )
    return 0 if all(fmean(values) >= lowest for values in scores.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
