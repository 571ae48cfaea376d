"""Predict what a step takes on more machines, and check the prediction against real runs.

    pip install simpy==4.1.2
    python examples/benchmarks/scale_model.py --out runs/scale

The runs are those of `grpo run --processes N` with a tiny model. Its sampler and its verifiers
wait, as engines and verifiers elsewhere would (waiting.py), so that two cores suffice. The script
measures what each piece of work costs in a layout of one process and one verifier, predicts the
steps of other layouts, which differ in what holds them up, and runs them: it exits with 1 if a
prediction is more than 20 % off. Then it draws what a step takes on up to 1,000 machines, if at
each point the kind is added that helps most, and writes table and picture to --out. With --metrics
RUN the costs are those of a run of one process, in proportion to its rows, and nothing is run.

Not checked: what an exchange between many trainers costs (--exchange), and the asynchronous
pipeline (staleness), which is modelled by its bound alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from scale_growth import draw, grown, table_of_growth
from scale_simulation import Costs, Layout, simulate

HERE = Path(__file__).parent
BAR = 0.2
"""Largest relative error of a predicted step."""
STEPS, WARM_UP = 6, 2
"""Steps of a real run, and those of them that are not counted."""
MEETING_SECONDS, MEETINGS = 0.025, 7
"""Processes of one run meet so often in a step, and notice each other within 0.05 s."""
SMALL, LARGE = 2, 8
"""Prompts of the two runs that the costs are measured with, in groups of 4."""
CALIBRATION_VERDICT = 0.1


@dataclass(frozen=True, slots=True)
class Case:
    """A real layout: processes and verifiers of each, work per step, seconds of a verdict."""

    name: str
    processes: int
    workers: int
    prompts: int
    group: int
    verdict: float


CASES = (
    Case("2 verifiers, slow verdicts", 1, 2, prompts=4, group=8, verdict=0.5),
    Case("16 verifiers, large groups", 1, 16, prompts=6, group=16, verdict=0.3),
    Case("2 processes of 2 verifiers", 2, 2, prompts=8, group=4, verdict=0.7),
    Case("2 processes of 8 verifiers", 2, 8, prompts=6, group=32, verdict=0.3),
)


def prepare(out: Path) -> None:
    """Make the model, and offer waiting.py as an installed plugin to processes that look here."""
    from small import characters, make_model

    make_model(out / "model", characters(), seed=0, hidden=32, layers=1)
    info = out / "grpo_waiting-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: grpo-waiting\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[grpo]\nwaiting = waiting\n")


def run_steps(out: Path, name: str, case: Case, *, overlap: bool = True) -> dict[str, float]:
    """Return the medians of the times of a real run in the folder `name` of `out`."""
    settings = {
        "model.name": out / "model",
        "model.dtype": "float32",
        "lora.enabled": "false",
        "steps": STEPS,
        "prompts_per_step": case.prompts,
        "group_size": case.group,
        "env.seconds": case.verdict,
        "verify.workers": case.workers,
        "verify.cache": "off",
        "verify.overlap": str(overlap).lower(),
        "sampler.name": "waiting",
        "eval.tasks": 0,
        "checkpoint.every": 0,
    }
    command = [sys.executable, "-c", "from grpo_core.cli import main; main()", "run"]
    command += ["--env", f"{HERE / 'waiting.py'}:Waiting", "--out", str(out / name)]
    command += ["--processes", str(case.processes)]
    command += [f"--set={key}={value}" for key, value in settings.items()]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (out.absolute(), HERE)))}
    subprocess.run(command, check=True, env={**env, "OMP_NUM_THREADS": "1"})
    return medians(out / name)


def medians(folder: Path) -> dict[str, float]:
    """Return the medians of a run's times, over the steps after the warm-up."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["kind"] == "step"][WARM_UP:]
    names = [name for name in steps[0] if name.startswith("time/") and name != "time/load"]
    return {name: median(step[name] for step in steps) for name in names}


def measured_costs(out: Path) -> Costs:
    """Return the costs by two runs of one process with one verifier, a small and a large one."""
    verdict = CALIBRATION_VERDICT
    cases = [
        Case("", 1, 1, prompts=prompts, group=4, verdict=verdict) for prompts in (SMALL, LARGE)
    ]
    small, large = (
        run_steps(out, f"calibration-{case.prompts}", case, overlap=False) for case in cases
    )
    few, many = (case.prompts * case.group for case in cases)

    def line(name: str) -> tuple[float, float]:
        """Seconds of none and of each row."""
        slope = (large[name] - small[name]) / (many - few)
        return max(0.0, small[name] - few * slope), max(0.0, slope)

    batch, row = line("time/rollout")
    step, update_row = line("time/update")
    return Costs(
        sample_batch=batch,
        sample_row=row,
        verdict=large["time/verify"] / many - verdict,
        update_step=step,
        update_row=update_row,
        sync=large["time/sync"],
        exchange=MEETING_SECONDS * MEETINGS,
    )


def recorded_costs(folder: Path) -> Costs:
    """Return costs in proportion to the rows of a run's steps, from its metrics."""
    config = json.loads((folder / "config.json").read_text())
    rows = config["prompts_per_step"] * config["group_size"]
    workers = config["verify"]["workers"] or 1
    times = medians(folder)
    return Costs(
        sample_batch=0.0,
        sample_row=times["time/rollout"] / rows,
        verdict=times["time/verify"] * workers / rows,
        update_step=0.0,
        update_row=times["time/update"] / rows,
        sync=times.get("time/sync", 0.0),
    )


def check(costs: Costs, out: Path) -> list[dict[str, Any]]:
    """Predict the step of each case, run it, and return and print both."""
    rows = []
    for number, case in enumerate(CASES):
        layout = Layout(
            case.prompts,
            case.group,
            trainers=case.processes,
            samplers=case.processes,
            verifiers=case.processes * case.workers,
            pools=case.processes,
        )
        predicted = simulate(replace(costs, verdict=costs.verdict + case.verdict), layout)
        measured = run_steps(out, f"case-{number}", case)["time/step"]
        ratio = predicted.seconds / measured
        rows.append(
            {
                "layout": case.name,
                "rows": layout.rows,
                "predicted": predicted.seconds,
                "measured": measured,
                "ratio": ratio,
                "busiest": predicted.busiest,
                "ok": abs(ratio - 1) <= BAR,
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    return rows


def table_of_checks(rows: Sequence[dict[str, Any]]) -> str:
    lines = ["| layout | rows | predicted | measured | ratio | busiest |", "| --- " * 6 + "|"]
    lines += [
        f"| {row['layout']} | {row['rows']} | {row['predicted']:.2f} s | {row['measured']:.2f} s "
        f"| {row['ratio']:.2f} | {row['busiest']} |"
        for row in rows
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--metrics", type=Path, help="take the costs from this run")
    parser.add_argument("--verdict", type=float, default=0.5, help="seconds, for the picture")
    parser.add_argument("--exchange", type=float, default=0.5, help="seconds, for the picture")
    parser.add_argument("--prompts", type=int, default=64, help="per step, for the picture")
    options = parser.parse_args()
    options.out.mkdir(parents=True)
    report, rows = [], []
    if options.metrics:
        costs = recorded_costs(options.metrics)
        many = costs
    else:
        prepare(options.out)
        costs = measured_costs(options.out)
        rows = check(costs, options.out)
        report.append(table_of_checks(rows))
        many = replace(costs, verdict=costs.verdict + options.verdict)
    many = replace(many, exchange=options.exchange)
    work = Layout(options.prompts, 8, shared=False)
    paths = {k: grown(many, replace(work, staleness=k)) for k in (0, 1, 4)}
    report += [f"staleness {k}\n\n{table_of_growth(path)}" for k, path in paths.items()]
    (options.out / "costs.json").write_text(json.dumps(asdict(costs), indent=2) + "\n")
    (options.out / "table.md").write_text("\n\n".join(report) + "\n")
    draw(paths, options.out / "scale.png")
    print("\n\n".join(report))
    sys.exit(any(not row["ok"] for row in rows))


if __name__ == "__main__":
    main()
