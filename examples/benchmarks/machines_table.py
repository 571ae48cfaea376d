"""Print validity, mean and best score of 50 machines from each source, as in the paper's tables.

    python examples/benchmarks/machines_table.py [--run RUN ...] [--env besiege/car] [--model MODEL]

The paper is arXiv 2510.14980, table 2. Reference machines are those of the cold start; random ones
grow block by block wherever there is room. Both are verified by the engine that verifies a run. A
trained run, or a model, is measured by `grpo eval` with one completion for each of 50 held-out
tasks. Means are over the valid machines, as in the paper.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from grpo_core import Rollout, Task, TaskKey, Verdict
from grpo_core.config.overrides import build_config
from grpo_core.runs.lines import read_lines
from grpo_core.verify.sources import Sources
from grpo_env_besiege.cold_start import compact
from grpo_env_besiege.growing import grow
from grpo_env_besiege.levels import LEVELS

COUNT = 50


async def verify_machines(name: str) -> dict[str, list[Verdict]]:
    """Return the verdicts on reference and random machines, by source."""
    rng = random.Random(0)
    async with Sources.of(
        build_config([{"environment": name, "env": {"prompt": "short"}}]), {}
    ) as sources:
        keys = [TaskKey(name, "eval", index) for index in range(COUNT)]
        tasks = await sources.tasks(keys)
        answers = {
            "reference machines": [answer or "" for answer in await sources.references(tasks)],
            "random valid machines": [
                _random_machine(rng, sources[name].env.task(key)) for key in keys
            ],
        }
        verdicts_by_source = {}
        for source, texts in answers.items():
            verdicts = await sources.verify(tasks, [[Rollout.of(text)] for text in texts])
            verdicts_by_source[source] = [verdict for (verdict,) in verdicts]
        return verdicts_by_source


def _random_machine(rng: random.Random, task: Task[Any]) -> str:
    return compact(
        grow(rng, size=rng.randint(5, task.data.most), types=LEVELS[task.data.level].allowed)
    )


def evaluate(options: Sequence[str]) -> list[Verdict]:
    """Run `grpo eval` and return the verdicts."""
    with tempfile.TemporaryDirectory() as folder:
        attempts = Path(folder) / "attempts.jsonl"
        command = [
            f"{Path(sys.executable).parent}/grpo",
            "eval",
            *options,
            "--tasks",
            str(COUNT),
            "--samples",
            "1",
        ]
        subprocess.run(
            [*command, "--attempts", str(attempts)], check=True, stdout=subprocess.DEVNULL
        )
        return [Verdict.from_json(line["verdict"]) for line in read_lines(attempts)]


def row(source: str, verdicts: Sequence[Verdict]) -> str:
    scores = [
        verdict.metrics["performance"]
        for verdict in verdicts
        if verdict.scored and not verdict.metrics["invalid"]
    ]
    mean, best = (f"{fmean(scores):.2f}", f"{max(scores):.2f}") if scores else ("-", "-")
    return f"| {source} | {len(scores)}/{len(verdicts)} | {mean} | {best} |"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--env", default="besiege/car")
    parser.add_argument(
        "--run", type=Path, nargs="+", action="extend", default=[], help="folders of finished runs"
    )
    parser.add_argument(
        "--model", nargs="+", action="extend", default=[], help="models that were not trained"
    )
    parser.add_argument("--json", action="store_true", help="print the verdicts' metrics, too")
    options = parser.parse_args()
    verdicts_by_source = asyncio.run(verify_machines(options.env))
    verdicts_by_source |= {
        "/".join(run.parts[-2:]): evaluate(["--run", str(run)]) for run in options.run
    }
    more = ["--env", options.env, "--set", "env.prompt=short", "--max-new-tokens", "400"]
    verdicts_by_source |= {
        "/".join(Path(model).parts[-2:]): evaluate([*more, "--model", model])
        for model in options.model
    }
    print(f"| {options.env} | valid | mean | best |\n| --- | --- | --- | --- |")
    for source, verdicts in verdicts_by_source.items():
        print(row(source, verdicts))
    if options.json:
        print(
            json.dumps(
                {
                    source: [dict(verdict.metrics) for verdict in verdicts]
                    for source, verdicts in verdicts_by_source.items()
                }
            )
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
