"""Draw a picture of the results of vs_trl.py and vs_vllm.py, from their JSON.

python examples/benchmarks/picture.py examples/benchmarks/results/*.json
    --out examples/benchmarks/results/speed.png
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

COLOURS = {
    "grpo-core": "tab:blue",
    "trl": "tab:orange",
    "generate": "tab:green",
    "vllm": "tab:purple",
}


def draw_steps(axes: Any, results: Any) -> None:
    """Draw the seconds of a step, rollout and update beside each other."""
    for name, medians in results["medians"].items():
        axes.barh(name, medians["rollout"], color=COLOURS[name])
        axes.barh(name, medians["update"], left=medians["rollout"], color=COLOURS[name], alpha=0.5)
        end = medians["rollout"] + medians["update"]
        axes.text(
            end,
            name,
            f" {medians['seconds']:.1f} s, {medians['peak_mb'] / 1000:.1f} GB",
            va="center",
        )
    axes.set_xlim(0, 1.3 * axes.get_xlim()[1])
    settings = results["settings"]
    axes.set_title(
        f"a step: {settings['prompts_per_step']} x {settings['group_size']} completions of "
        f"{settings['max_new_tokens']} tokens\n"
        "(rollout, then update in the lighter tone)"
    )


def draw_speeds(axes: Any, results: Any) -> None:
    """Draw the tokens per second of each engine."""
    for name, speed in results["tokens_per_second"].items():
        axes.barh(name, speed, color=COLOURS[name])
        axes.text(speed, name, f" {speed:.0f} tokens/s", va="center")
    axes.set_xlim(0, 1.3 * max(results["tokens_per_second"].values()))
    settings = results["settings"]
    axes.set_title(f"generation: {settings['rows']} rows of {settings['max_new_tokens']} tokens")


def picture(measured: Sequence[Any]) -> Figure:
    """Return the picture of some results, one below the other."""
    figure = Figure(figsize=(9, 2.6 * len(measured)), layout="constrained")
    for axes, results in zip(
        figure.subplots(len(measured), squeeze=False)[:, 0], measured, strict=True
    ):
        (draw_steps if "medians" in results else draw_speeds)(axes, results)
        axes.invert_yaxis()
        axes.set_xlabel(results["machine"], fontsize="small")
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    picture([json.loads(file.read_text()) for file in options.files]).savefig(options.out)


if __name__ == "__main__":
    main()
