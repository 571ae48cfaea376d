"""Draw the curves of all runs of race.py: training pass rate, entropy, live groups, KL.

python examples/benchmarks/race_picture.py runs/race --out examples/benchmarks/results/race.png
    [--only default NAME ...]

A thin line is a run (a mean over 10 steps), the thick one the median of a candidate's runs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from matplotlib.figure import Figure
from race import folder_of

from grpo_core.runs.folder import RunFolder
from grpo_core.runs.lines import read_lines

PANELS: Mapping[str, str] = {
    "pass_rate": "share of right answers among the samples",
    "entropy": "entropy, nats per token",
    "groups/mixed": "share of groups whose rewards differ",
    "kl": "KL per token, nats",
}
SMOOTHED = 10


def curve(folder: Path, metric: str) -> list[float]:
    """Return the means of a metric over each step and the 9 before it."""
    values = [
        line[metric]
        for line in read_lines(folder / "metrics.jsonl")
        if "reward/mean" in line and line.get(metric) is not None
    ]
    return [fmean(values[max(0, end - SMOOTHED) : end]) for end in range(1, len(values) + 1)]


def draw(axes: Any, metric: str, runs: Mapping[str, Sequence[Path]]) -> None:
    """Draw one metric of all runs."""
    for number, (name, folders) in enumerate(runs.items()):
        curves = [curve(folder, metric) for folder in folders]
        colour = f"C{number}"
        for values in curves:
            axes.plot(range(1, len(values) + 1), values, color=colour, alpha=0.25, linewidth=0.8)
        middle = [median(values) for values in zip(*curves, strict=False)]
        axes.plot(range(1, len(middle) + 1), middle, color=colour, label=f"{name} ({len(curves)})")
    axes.set_title(PANELS[metric])
    axes.set_xlabel("step")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("race", type=Path, help="the folder of race.py, with results.json")
    parser.add_argument("--only", nargs="*", help="names of candidates; default: all")
    parser.add_argument("--out", type=Path, default=Path("race.png"))
    options = parser.parse_args()
    results = json.loads((options.race / "results.json").read_text(encoding="utf-8"))
    runs: dict[str, list[Path]] = {}
    for result in results:
        folder = folder_of(options.race, result["candidate"], result["seed"])
        wanted = options.only is None or result["candidate"] in options.only
        if wanted and RunFolder(folder).finished:
            runs.setdefault(result["candidate"], []).append(folder)
    if not runs:
        parser.error(f"{options.race} holds no finished run of these candidates")
    figure = Figure(figsize=(11, 7), layout="constrained")
    panels = figure.subplots(2, 2).flat
    for axes, metric in zip(panels, PANELS, strict=True):
        draw(axes, metric, runs)
    figure.axes[0].legend(fontsize="small", loc="upper left")
    figure.savefig(options.out, dpi=110)


if __name__ == "__main__":
    main()
