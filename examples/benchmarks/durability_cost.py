"""Measure the time that digests and syncing add to a step of the README's first command.

    python examples/benchmarks/durability_cost.py [--steps 20] [--every 10]
    git worktree add /tmp/before COMMIT
    python examples/benchmarks/durability_cost.py --before /tmp/before [--rounds 3]

The first form times, inside one run, everything that serves durability alone (digests of logs and
checkpoints, syncing the logs, copies of the random states) and prints its share of the run's time:
that does not depend on the machine's other load. The second form compares whole runs of two
checkouts in pairs. Both save a checkpoint every `--every` steps; the default of a run is 50. The
bar is 2 %.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BAR = 0.02
ADDED = {
    "grpo_core.runs.folder:RunFolder": ("sync", "marks"),
    "grpo_core.train.run.checkpoint": ("file_digests",),
    "grpo_core.train.run.checkpoint:RandomStates": ("now",),
}
"""The functions that serve durability, by module or class."""


def measure(steps: int, every: int) -> dict[str, Any]:
    """Return seconds per step, and the share that the functions of ADDED take."""
    try:
        from grpo_core.config.overrides import build_config
    except ModuleNotFoundError:  # a checkout from before the core had rooms
        from grpo_core.overrides import build_config  # type: ignore[import-not-found, no-redef]
    from grpo_core.runs.observer import Observer
    from grpo_core.train.trainer import Trainer

    added = _timed_functions()

    class Clock(Observer):
        def __init__(self) -> None:
            self.times: list[float] = []

        def step(self, step: int, total: int, metrics: Any) -> None:
            self.times.append(time.perf_counter())
            if step == 1:
                added.clear()

    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        more = {"steps": steps, "eval": {"tasks": 0}, "checkpoint": {"every": every}}
        trainer = Trainer(
            build_config([{"environment": "arithmetic"}, more]),
            folder=Path(folder, "run"),
            observer=clock,
        )
        trainer.run()
        checkpoint = sum(
            path.stat().st_size for path in Path(folder, "run").rglob(f"step-{steps:06d}/*")
        )
    whole = clock.times[-1] - clock.times[0]
    return {
        "seconds_per_step": whole / (steps - 1),
        "share": sum(added) / whole,
        "checkpoint_mb": checkpoint / 2**20,
    }


def _timed_functions() -> list[float]:
    """Replace the functions of ADDED by ones that record their seconds, and return the records.

    A checkout without these functions has no records.
    """
    import importlib

    seconds: list[float] = []

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            started = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                seconds.append(time.perf_counter() - started)

        return call

    for place, names in ADDED.items():
        module, _, class_name = place.partition(":")
        try:
            owner: Any = importlib.import_module(module)
            owner = getattr(owner, class_name) if class_name else owner
        except (ImportError, AttributeError):
            continue
        for name in names:
            if hasattr(owner, name):
                setattr(owner, name, timed(getattr(owner, name)))
    return seconds


def measure_checkout(checkout: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the result of `measure` with the code of a checkout."""
    roots = [checkout, *(checkout / name for name in ("environments", "plugins", "sandbox"))]
    command = [
        sys.executable,
        str(Path(__file__).resolve()),
        "--steps",
        str(options.steps),
        "--every",
        str(options.every),
        "--json",
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, roots))}
    process = subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment, cwd=checkout
    )
    measured: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return measured


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--every", type=int, default=10, help="steps between two checkpoints")
    parser.add_argument("--before", type=Path, help="another checkout to compare with")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.before is None:
        result = measure(options.steps, options.every)
        print(json.dumps(result) if options.json else json.dumps(result, indent=2))
        sys.exit(0 if options.json or result["share"] < BAR else 1)
    here, ratios, shares = Path(__file__).resolve().parents[2], [], []
    for number in range(options.rounds):
        sides = [options.before.resolve(), here] if number % 2 else [here, options.before.resolve()]
        measured = {side: measure_checkout(side, options) for side in sides}
        ratios.append(
            measured[here]["seconds_per_step"]
            / measured[options.before.resolve()]["seconds_per_step"]
        )
        shares.append(measured[here]["share"])
        print(
            f"round {number + 1}: {ratios[-1]:.3f} of the time before; "
            f"share of durability {shares[-1]:.4f}",
            flush=True,
        )
    print(
        f"median ratio {statistics.median(ratios):.3f}, "
        f"median share {statistics.median(shares):.4f} (bar {BAR})"
    )
    sys.exit(0 if statistics.median(shares) < BAR else 1)
