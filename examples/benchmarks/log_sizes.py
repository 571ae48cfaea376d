"""Measure what each option of the log takes on the disk: bytes per rollout in a small real run.

`python examples/benchmarks/log_sizes.py --out runs/log-sizes` trains two steps with everything
logged, and counts what the lines have without the fields of an option; the run does not depend
on. A folder that is finished is only counted.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from grpo_core import (
    Environment,
    Message,
    Reward,
    Rollout,
    Task,
    TaskKey,
    Trainer,
    Verdict,
    build_config,
)
from grpo_core.runs.folder import RunFolder
from grpo_report.indexes.index import RolloutIndex
from grpo_report.indexes.index_place import index_path

NUMBER = re.compile(r"-?\d{1,9}")
OPTIONS = {"log.tokens": ("policy_tokens",), "log.ratios": ("ratios", "entropies")}
"""The fields that each option adds to rollouts."""


class Explained(Environment[int]):
    """Asks for products with an explanation, so that completions are as long as they may be."""

    parts: ClassVar[Mapping[str, float]] = {"right": 1.0, "says": 0.2}
    max_new_tokens = 128
    trusted = True

    def task(self, key: TaskKey) -> Task[int]:
        """Ask for the product of two numbers and their sum."""
        rng = key.rng()
        a, b = rng.randint(11, 99), rng.randint(11, 99)
        text = f"Explain step by step how to compute {a} * {b} + {a}. End with 'Answer: N'."
        return Task(key, (Message("user", text),), a * b + a)

    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        """Pay for the right last number, and a little for the words before it."""
        said = NUMBER.findall(rollout.text)
        right = bool(said) and int(said[-1]) == task.data
        parts = {
            "right": Reward(right, note=f"expected {task.data}"),
            "says": Reward("Answer:" in rollout.text),
        }
        return Verdict(parts, passed=right, answer=said[-1] if said else None)


def train(folder: Path) -> None:
    """Train two steps with everything logged."""
    settings = {
        "environment": "explained",
        "steps": 2,
        "prompts_per_step": 4,
        "group_size": 8,
        "eval": {"tasks": 16},
        "log": {"tokens": True, "ratios": True},
    }
    Trainer(build_config([settings]), Explained(), folder=RunFolder.unused(folder)).run()


def size(value: Any) -> int:
    """Return the bytes of a line."""
    return len(json.dumps(value)) + 1


def measure(folder: Path) -> dict[str, float]:
    """Return bytes per rollout of a training step, by what is counted."""
    lines = [json.loads(line) for line in (folder / "rollouts.jsonl").read_text().splitlines()]
    lines = [line for line in lines if line.get("key", {}).get("split") != "eval"]
    rollouts = [line for line in lines if "attempt" in line]
    updates = [line for line in lines if "attempts" in line]
    count = len(rollouts)
    plain = [
        {name: value for name, value in line.items() if name not in OPTIONS["log.tokens"]}
        for line in lines
        if "attempts" not in line
    ]
    packed = gzip.compress("".join(json.dumps(line) + "\n" for line in plain).encode(), 3)
    everything = gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode(), 3)
    with RolloutIndex.open(folder) as index:
        indexed = index.count().rollouts
    return {
        "tokens of a completion": sum(line["tokens"] for line in rollouts) / count,
        "line of the group, shared by its rollouts": sum(
            size(line) for line in plain if "attempt" not in line
        )
        / count,
        "line of the rollout": sum(size(line) for line in plain if "attempt" in line) / count,
        "log.tokens=true adds": sum(
            size(line) - size({k: v for k, v in line.items() if k != "policy_tokens"})
            for line in rollouts
        )
        / count,
        "log.ratios=true adds": sum(map(size, updates)) / count,
        "compressed, without options": len(packed) / count,
        "compressed, with both": len(everything) / count,
        "index": index_path(folder).stat().st_size / indexed,
    }


def main() -> None:
    """Train if need be, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    if not (arguments.out / "final").is_dir():
        train(arguments.out)
    for name, value in measure(arguments.out).items():
        print(f"| {name} | {value:,.0f} |")


if __name__ == "__main__":
    main()
