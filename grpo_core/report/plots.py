"""training_curve.png and kl_divergence.png, drawn from metrics.jsonl alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from grpo_core.errors import MissingExtraError
from grpo_core.runlog import read_lines

SMOOTH = 10


def draw_plots(folder: Path) -> list[Path]:
    """Both pictures of the run in `folder`; none if no step was logged."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("drawing plots", "train", package="matplotlib") from None
    lines = list(read_lines(folder / "metrics.jsonl"))
    steps = [line for line in lines if "reward/mean" in line]
    evals = [line for line in lines if "eval/reward/mean" in line]
    if not steps:
        return []
    curve, kl = Figure(figsize=(8, 4.5), layout="constrained"), Figure(figsize=(8, 4.5), layout="constrained")
    axis = curve.subplots()
    for name, label, colour in (("reward/mean", "reward", "tab:blue"), ("pass_rate", "pass rate", "tab:green")):
        _series(axis, steps, name, f"{label} (training)", colour)
        found = [(e["step"], e[f"eval/{name}"]) for e in evals if e.get(f"eval/{name}") is not None]
        axis.plot([step for step, _ in found], [value for _, value in found], "o--", color=colour, label=f"{label} (held-out)")
    _finish(axis, "reward and pass rate")
    axis = kl.subplots()
    _series(axis, steps, "kl", "KL to the reference", "tab:red")
    _finish(axis, "nats per token")
    paths = [folder / "training_curve.png", folder / "kl_divergence.png"]
    for figure, path in zip((curve, kl), paths, strict=True):
        figure.savefig(path, dpi=120)
    return paths


def _series(axis: Any, lines: Sequence[dict[str, Any]], name: str, label: str, colour: str) -> None:
    """Every step thinly, and the mean over the last few on top."""
    measured = [(line["step"], line[name]) for line in lines if line.get(name) is not None]
    x, y = [step for step, _ in measured], [value for _, value in measured]
    smooth = [fmean(y[max(0, i - SMOOTH + 1) : i + 1]) for i in range(len(y))]
    axis.plot(x, y, color=colour, alpha=0.25, linewidth=1)
    axis.plot(x, smooth, color=colour, label=label)


def _finish(axis: Any, y_label: str) -> None:
    axis.set_xlabel("step")
    axis.set_ylabel(y_label)
    axis.grid(alpha=0.3)
    axis.legend()
