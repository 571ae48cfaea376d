"""Compare the time from the command to the first evaluation with that of another checkout.

    git worktree add BEFORE COMMIT
    python examples/benchmarks/start.py --before BEFORE [--pairs 3] [--model smollm2-135m]

Each pair runs `grpo run --env arithmetic` once with each code, the other one first in every second
pair, so that a noisy machine disturbs both. The clock stops when the command says that it
evaluates, which is when the sampler gets the first prompt and has sampled before to be checked. A
first run with each code, which fills the caches, is not counted. Prints the seconds of each run,
those of the processor, and the load of the machine before it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from vs_checkout import python_of

HERE = Path(__file__).resolve().parents[2]
COMMAND = ["-c", "from grpo_core.cli import main; main()", "run", "--env", "arithmetic"]


def start(python: list[str], model: str) -> tuple[float, float]:
    """Return the seconds from the command to its first evaluation, which is then ended.

    The second number is the processor's time for it, which other work on the machine changes less.
    """
    with tempfile.TemporaryDirectory() as folder:
        more = ["--model", model, "--steps", "1", "--set", "eval.tasks=2", "--out", f"{folder}/run"]
        started = time.perf_counter()
        run = subprocess.Popen(
            [*python, *COMMAND, *more], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert run.stdout is not None
        said = []
        for line in run.stdout:
            said.append(line)
            if line.startswith("evaluating"):
                break
        else:
            sys.exit(f"the run ended without an evaluation: {''.join(said)}")
        seconds = time.perf_counter() - started
        run.kill()
        _, run.returncode, used = os.wait4(run.pid, 0)
        return seconds, used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, required=True, help="folder of the other checkout")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    sides = {"before": python_of(options.before.resolve()), "here": python_of(HERE)}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for pair in range(options.pairs + 1):
        for name in sorted(sides, reverse=pair % 2 == 1):
            load = os.getloadavg()[0]
            taken, processor = start(sides[name], options.model)
            note = "  (fills the caches, not counted)" if pair == 0 else ""
            times = f"{taken:6.1f} s, {processor:6.1f} s of the processor"
            print(f"{name:6}  {times}, at a load of {load:.1f}{note}", flush=True)
            if pair:
                seconds[name].append(taken)
    before, here = (statistics.median(seconds[name]) for name in ("before", "here"))
    print(f"median: before {before:.1f} s, here {here:.1f} s")


if __name__ == "__main__":
    main()
