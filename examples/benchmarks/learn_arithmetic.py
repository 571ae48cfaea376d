"""Show that the default recipe learns: SmolLM2-135M on arithmetic, three seeds and a control.

    python examples/benchmarks/learn_arithmetic.py --out runs/learn [--only "seed 1"] [--unbounded]

The level is 0. Each seed takes 150 steps, and the control, whose rewards are shuffled, 75. Finished
runs in --out are read and not repeated; interrupted ones are resumed. The bars: every seed gains at
least 25 points of exact answers on at least 300 held-out tasks with a paired 95 % interval above 0;
the control gains nothing (its interval contains 0 or lies below). On a CPU with bf16 units a seed
has to do that in under 25 minutes; on any other machine the time is only reported. --unbounded runs
the seeds also without the bound on how much dead groups lift gdpo's advantages, and compares them
with the runs of the defaults by the same held-out tasks. Exits with 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from grpo_core.figures.gains import Gain, paired_gain
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.lines import read_lines

COMMON = ["--env", "arithmetic", "--max-new-tokens", "12", "--set", "eval.tasks=339"]
RUNS = {
    "seed 0": ["--seed", "0", "--steps", "150"],
    "shuffled control": ["--seed", "0", "--steps", "75", "--set", "trainer.shuffle_rewards=true"],
    "seed 1": ["--seed", "1", "--steps", "150"],
    "seed 2": ["--seed", "2", "--steps", "150"],
}
LEAST_GAIN, MOST_MINUTES = 0.25, 25
UNBOUNDED = "from grpo_core.train.algorithm import advantages; advantages.MAX_LIFT = float('inf'); "


@dataclass(frozen=True)
class Result:
    """The result of a run."""

    name: str
    steps: int
    exact: Gain
    reward_before: float
    reward_after: float
    minutes: float | None
    first_step_seconds: float | None
    seconds_per_step: float
    truncated: float

    @property
    def met(self) -> bool:
        """Return whether the run meets its bar."""
        if "control" in self.name:
            return self.exact.low <= 0
        in_time = not bf16_units() or (self.minutes or 0) < MOST_MINUTES
        return (
            self.exact.mean >= LEAST_GAIN
            and self.exact.low > 0
            and self.exact.tasks >= 300
            and in_time
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs/learn"), help="folder of the four runs"
    )
    parser.add_argument(
        "--only", nargs="*", choices=list(RUNS), default=list(RUNS), help="run only these"
    )
    parser.add_argument(
        "--unbounded", action="store_true", help="compare with runs without gdpo's bound"
    )
    arguments = parser.parse_args()
    results = [measure(name, arguments.out / name.replace(" ", "-")) for name in arguments.only]
    record = {"machine": machine(), "results": [{**asdict(r), "met": r.met} for r in results]}
    (arguments.out / "results.json").write_text(
        json.dumps(record, indent=2) + "\n", encoding="utf-8"
    )
    print(table(results))
    if arguments.unbounded:
        for name in arguments.only:
            print(comparison(name, arguments.out), flush=True)
    return 0 if all(r.met for r in results) else 1


def comparison(name: str, out: Path) -> str:
    """Run `name` without the bound; return by how much the run of the defaults is better."""
    folder = out / name.replace(" ", "-")
    without = folder.with_name(f"{folder.name}-unbounded")
    last_step = measure(name, without, setup=UNBOUNDED).steps
    difference = paired_gain(
        exact_answers(without, step=last_step), exact_answers(folder, step=last_step)
    )
    assert difference is not None, f"{folder} and {without} share no held-out tasks"
    low, high = 100 * difference.low, 100 * difference.high
    return (
        f"{name}: with the bound {difference.after:.1%}, without {difference.before:.1%}, "
        f"{100 * difference.mean:+.1f} points ({low:+.1f} .. {high:+.1f}), "
        f"{difference.tasks} tasks"
    )


def measure(name: str, folder: Path, *, setup: str = "") -> Result:
    """Start, resume or skip a run, then read its folder; `setup` is Python code before the run."""
    timing = folder / "timing.json"
    if not RunFolder(folder).finished:
        fresh = not (folder / "config.json").exists()
        started = time.time()
        arguments = (
            [*COMMON, *RUNS[name], "--out", str(folder)] if fresh else ["--resume", str(folder)]
        )
        subprocess.run(
            [
                sys.executable,
                "-c",
                f"{setup}from grpo_core.cli import main; main()",
                "run",
                *arguments,
            ],
            check=True,
        )
        if fresh:  # the time of a resumed run is not comparable
            timing.write_text(
                json.dumps({"minutes": (time.time() - started) / 60, "started": started}),
                encoding="utf-8",
            )
    timed = json.loads(timing.read_text(encoding="utf-8")) if timing.exists() else {}
    lines = list(read_lines(folder / "metrics.jsonl"))
    steps = [line for line in lines if "reward/mean" in line]
    evals = [line for line in lines if "eval/reward/mean" in line]
    exact = paired_gain(
        exact_answers(folder, step=0), exact_answers(folder, step=steps[-1]["step"])
    )
    assert exact is not None, f"{folder} holds no two evaluations"
    before_first = steps[0]["time/load"] + evals[0]["eval/seconds"] + steps[0]["time/step"]
    return Result(
        name=name,
        steps=steps[-1]["step"],
        exact=exact,
        reward_before=evals[0]["eval/reward/mean"],
        reward_after=evals[-1]["eval/reward/mean"],
        minutes=timed.get("minutes"),
        first_step_seconds=before_first,
        seconds_per_step=sorted(line["time/step"] for line in steps)[len(steps) // 2],
        truncated=max(line["completion_length/clipped"] for line in steps),
    )


def exact_answers(folder: Path, *, step: int) -> dict[int, float]:
    """Return 1 or 0 for each held-out task, by its index."""
    return {
        line["key"]["index"]: line["verdict"]["rewards"]["exact"]["value"]
        for line in RunFolder(folder).rollout_lines()
        if line["step"] == step
        and line["key"]["split"] == "eval"
        and line["verdict"]["error"] is None
    }


def bf16_units() -> list[str]:
    return [name for name in ("amx_bf16", "avx512_bf16") if torch.cpu.get_capabilities().get(name)]


def machine() -> str:
    units = ", ".join(bf16_units()) or "none"
    return (
        f"{os.cpu_count()} cores, {platform.machine()}, bf16 units: {units}, "
        f"torch {torch.__version__}"
    )


def table(results: list[Result]) -> str:
    lines = [
        "| run | steps | exact before | exact after | gain, paired 95 % interval | reward "
        "| s/step (median) | minutes | bar |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for r in results:
        interval = f"{100 * r.exact.low:+.1f} .. {100 * r.exact.high:+.1f}"
        gain = f"{100 * r.exact.mean:+.1f} points ({interval}), {r.exact.tasks} tasks"
        lines.append(
            f"| {r.name} | {r.steps} | {r.exact.before:.1%} | {r.exact.after:.1%} | {gain} "
            f"| {r.reward_before:.2f} -> {r.reward_after:.2f} | {r.seconds_per_step:.1f} "
            f"| {'-' if r.minutes is None else f'{r.minutes:.1f}'} "
            f"| {'met' if r.met else 'MISSED'} |"
        )
    return "\n".join([*lines, "", f"Machine: {machine()}"])


if __name__ == "__main__":
    sys.exit(main())
