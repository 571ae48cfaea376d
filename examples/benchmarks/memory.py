"""Compare the estimate of a run's memory with the measured peak, for several kinds of settings.

    python examples/benchmarks/memory.py [--model MODEL] [--only NAME ...]

The settings differ in what takes most of the memory. Each takes two steps of `grpo run` in a
process of its own. Exits with 1 if an estimate differs by more than 20 %.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from grpo_core import Environment, Reward, Rollout, Task, TaskKey, Verdict
from grpo_core.engine.policy.memory_estimate import TOLERANCE
from grpo_core.runs.lines import read_lines


class Long(Environment[str]):
    """Ask prompts of about 500 tokens of digits, and give every completion a random reward."""

    parts: ClassVar[Mapping[str, float]] = {"length": 1.0}
    max_new_tokens = 64
    trusted = True

    def task(self, key: TaskKey) -> Task[str]:
        rng = key.rng()
        return Task(
            key, f"{key.index}: " + " ".join(str(rng.randrange(10)) for _ in range(250)), ""
        )

    def verify(self, task: Task[str], rollout: Rollout) -> Verdict:
        return Verdict({"length": Reward(random.Random(rollout.text).random())})


LONG = [
    "--env",
    f"{Path(__file__).resolve()}:Long",
    "--set",
    "prompts_per_step=4",
    "--set",
    "eval.tasks=0",
]
SETTINGS: Mapping[str, list[str]] = {
    "short": ["--env", "arithmetic", "--set", "eval.tasks=64"],
    "long": LONG,
    "long, layers recomputed": [*LONG, "--set", "trainer.gradient_checkpointing=true"],
    "long, 4-bit weights": [
        *LONG,
        "--set",
        "model.quantization=4bit",
        "--set",
        "prompts_per_step=2",
    ],
    "all weights": [
        *LONG,
        "--set",
        "lora.enabled=false",
        "--set",
        "optimizer.lr=1e-6",
        "--set",
        "prompts_per_step=2",
    ],
}


def measure(name: str, model: str) -> tuple[float, float]:
    """Run a setting and return the estimate and the peak in MiB."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            f"{Path(sys.executable).parent}/grpo",
            "run",
            *SETTINGS[name],
            "--model",
            model,
            "--steps",
            "2",
            "--out",
            f"{folder}/run",
        ]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        if process.returncode:
            raise SystemExit(
                f"{name}: status {process.returncode}\n"
                f"{process.stdout[-2000:]}{process.stderr[-2000:]}"
            )
        print(
            *(line for line in process.stdout.splitlines() if line.startswith("memory")), sep="\n"
        )
        lines = [
            line
            for line in read_lines(Path(folder) / "run" / "metrics.jsonl")
            if "memory/peak_mb" in line
        ]
        return lines[0]["memory/estimated_mb"], max(line["memory/peak_mb"] for line in lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--only", action="append", choices=SETTINGS)
    options = parser.parse_args()
    missed = 0
    for name in options.only or SETTINGS:
        estimated, peak = measure(name, options.model)
        apart = estimated / peak - 1
        missed += not 1 / TOLERANCE <= estimated / peak <= TOLERANCE
        print(
            f"{name}: estimated {estimated:.0f} MiB, measured {peak:.0f} MiB, {apart:+.0%}",
            flush=True,
        )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
