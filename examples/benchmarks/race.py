"""Race settings of GRPO against the defaults: SmolLM2-135M on arithmetic, over seeds.

    python examples/benchmarks/race.py --out runs/race --seeds 0 1 2
    python examples/benchmarks/race.py --out runs/race --only default full --seeds 0 1 --jobs 2
    python examples/benchmarks/race.py --out runs/race --table

A candidate is a name and the settings in which it differs from the defaults (CANDIDATES; further
ones by --candidate NAME KEY=VALUE ...). Each runs with each seed; finished runs in --out are read
and not repeated, interrupted ones are resumed. Held-out answers are drawn at temperature 1 whatever
the candidate samples with, one for each of 339 tasks. --jobs runs so many at a time, each with its
share of the cores; the minutes of a run that had the machine alone are those of --jobs 1. --table
only reads. The table also goes to results.json in --out, with the
machine that made each run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median

from learn_arithmetic import exact_answers, machine

from grpo_core.figures.gains import paired_gain
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.lines import read_lines

TASKS = 339
COMMON = ("--env", "arithmetic", "--set", f"eval.tasks={TASKS}", "--set", "eval.temperature=1")
WIDE = ("prompts_per_step=16", "kl.estimator=full")
"""Twice the prompts of the defaults: the solved examples before them are most of an update."""
MOVING = (*WIDE, "kl.refresh_every=1")
"""The same, and the reference is a running mean of the policy."""
CANDIDATES: Mapping[str, Sequence[str]] = {
    "default": (),
    "8 x 16, entropy": ("steps=100", "group_size=16", "kl.estimator=full", "loss.entropy=0.02"),
    "16 x 8, entropy": (
        "steps=60",
        "prompts_per_step=16",
        "optimizer.lr=0.0005",
        "loss.entropy=0.02",
    ),
    "strong KL": (*WIDE, "steps=60", "optimizer.lr=0.001", "kl.beta=0.5"),
    "moving, strong KL": (
        *MOVING,
        "steps=60",
        "optimizer.lr=0.001",
        "kl.beta=0.5",
        "kl.refresh_rate=0.05",
    ),
    "faster moving, entropy": (
        *MOVING,
        "steps=60",
        "optimizer.lr=0.001",
        "kl.beta=0.3",
        "kl.refresh_rate=0.1",
        "loss.entropy=0.02",
    ),
    "moving, strong KL, 110 steps": (
        *MOVING,
        "steps=110",
        "optimizer.lr=0.001",
        "kl.beta=0.5",
        "kl.refresh_rate=0.05",
    ),
    "moving, entropy, 110 steps": (
        *MOVING,
        "steps=110",
        "optimizer.lr=0.0007",
        "kl.beta=0.3",
        "kl.refresh_rate=0.05",
        "loss.entropy=0.02",
    ),
}


@dataclass(frozen=True)
class Measured:
    """Hold what one run of a candidate showed."""

    candidate: str
    seed: int
    settings: Sequence[str]
    before: float
    """Pass rate of the held-out tasks before training."""
    after: float
    """The same after it."""
    halfway_entropy: float
    """Entropy of the middle tenth of the steps, in nats per token."""
    last_entropy: float
    """Entropy of the last tenth of the steps."""
    last_alive: float
    """Share of the groups of the last tenth whose rewards differ."""
    highest_kl: float
    """KL per token of the step with the highest."""
    steps: int
    seconds_per_step: float
    minutes: float | None
    """Wall time of the whole command; None for a run that was resumed."""
    dtype: str
    machine: str


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/race"))
    parser.add_argument("--only", nargs="*", help="names of candidates; default: all")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, help="default: a candidate's, or that of `grpo run`")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument(
        "--candidate",
        nargs="+",
        action="append",
        default=[],
        metavar=("NAME", "KEY=VALUE"),
        help="a further candidate",
    )
    parser.add_argument("--table", action="store_true", help="only read what is there")
    options = parser.parse_args()
    candidates = {**CANDIDATES, **{name: settings for name, *settings in options.candidate}}
    names = list(candidates) if options.only is None else options.only
    if unknown := [name for name in names if name not in candidates]:
        parser.error(f"no candidate {', '.join(unknown)}; there are {', '.join(candidates)}")
    jobs = [(name, seed) for seed in options.seeds for name in names]

    def run_one(job: tuple[str, int]) -> None:
        name, seed = job
        arguments = ["--seed", str(seed), "--dtype", options.dtype]
        if options.steps is not None:
            arguments += ["--steps", str(options.steps)]
        for setting in candidates[name]:
            arguments += ["--set", setting]
        race(folder_of(options.out, name, seed), arguments, cores=cores // options.jobs)

    cores = len(os.sched_getaffinity(0))
    if not options.table:
        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(run_one, jobs))
    results = [
        measure(folder, name, seed, candidates[name])
        for name, seed in jobs
        if RunFolder(folder := folder_of(options.out, name, seed)).finished
    ]
    (options.out / "results.json").write_text(
        json.dumps([asdict(result) for result in results], indent=2) + "\n", encoding="utf-8"
    )
    print(table(results))
    return 0


def folder_of(out: Path, name: str, seed: int) -> Path:
    """Return the folder of a candidate's run with a seed."""
    return out / "".join(c if c.isalnum() or c in ".-" else "_" for c in name) / f"seed-{seed}"


def race(folder: Path, arguments: Sequence[str], *, cores: int) -> None:
    """Start or resume a run, unless it is finished; its output goes to a file beside it."""
    if RunFolder(folder).finished:
        return
    fresh = not (folder / "config.json").exists()
    folder.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    order = [*COMMON, *arguments, "--out", str(folder)] if fresh else ["--resume", str(folder)]
    with (folder.parent / f"{folder.name}.log").open("a", encoding="utf-8") as log:
        subprocess.run(
            [sys.executable, "-c", "from grpo_core.cli import main; main()", "run", *order],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "OMP_NUM_THREADS": str(max(1, cores))},
        )
    minutes = (time.monotonic() - started) / 60 if fresh else None
    (folder / "timing.json").write_text(
        json.dumps({"minutes": minutes, "machine": f"{machine()}, {cores} of them used"}),
        encoding="utf-8",
    )


def measure(folder: Path, name: str, seed: int, settings: Sequence[str]) -> Measured:
    """Read the run in `folder`."""
    lines = list(read_lines(folder / "metrics.jsonl"))
    steps = [line for line in lines if "reward/mean" in line]
    last = steps[-1]["step"]
    answers = [exact_answers(folder, step=step) for step in (0, last)]
    tenth = max(1, len(steps) // 10)
    middle = (len(steps) - tenth) // 2
    timed = json.loads((folder / "timing.json").read_text(encoding="utf-8"))

    def mean(metric: str, some: Sequence[Mapping[str, float]]) -> float:
        return fmean(line[metric] for line in some if line.get(metric) is not None)

    return Measured(
        name,
        seed,
        settings,
        *(fmean(by_task.values()) for by_task in answers),
        halfway_entropy=mean("entropy", steps[middle : middle + tenth]),
        last_entropy=mean("entropy", steps[-tenth:]),
        last_alive=mean("groups/mixed", steps[-tenth:]),
        highest_kl=max((line["kl"] for line in steps if line.get("kl") is not None), default=0.0),
        steps=last,
        seconds_per_step=median(line["time/step"] for line in steps),
        minutes=timed["minutes"],
        dtype=RunFolder(folder).config()["model"]["dtype"],
        machine=timed["machine"],
    )


def table(results: Sequence[Measured]) -> str:
    """Return the results by candidate, the best median first."""
    groups: dict[str, list[Measured]] = {}
    for result in results:
        groups.setdefault(result.candidate, []).append(result)
    defaults = {result.seed: result.after for result in groups.get("default", ())}
    lines = [
        "| candidate | seeds | after, median | worst | against the defaults, same seeds "
        "| entropy, middle and end | groups alive at the end | highest KL | s/step | minutes |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, runs in sorted(groups.items(), key=lambda item: -median(r.after for r in item[1])):
        gain = paired_gain(defaults, {run.seed: run.after for run in runs})
        minutes = [run.minutes for run in runs if run.minutes is not None]
        compared = (
            "-"
            if gain is None or name == "default"
            else f"{100 * gain.mean:+.1f} ({100 * gain.low:+.1f} .. {100 * gain.high:+.1f})"
        )
        lines.append(
            f"| {name} | {len(runs)} | {median(run.after for run in runs):.1%} "
            f"| {min(run.after for run in runs):.1%} | {compared} "
            f"| {fmean(run.halfway_entropy for run in runs):.2f}, "
            f"{fmean(run.last_entropy for run in runs):.2f} "
            f"| {fmean(run.last_alive for run in runs):.2f} "
            f"| {max(run.highest_kl for run in runs):.2f} "
            f"| {median(run.seconds_per_step for run in runs):.1f} "
            f"| {f'{median(minutes):.1f}' if minutes else '-'} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
