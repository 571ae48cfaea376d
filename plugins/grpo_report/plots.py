"""Draw the plots of a run from its metrics.jsonl alone."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from pathlib import Path
from statistics import fmean
from typing import Any

from grpo_core import MissingExtraError
from grpo_core.api.calls import printable
from grpo_core.api.runs import JsonObject, Kind, RunFolder, kind_of, write_whole

SMOOTH = 10
"""Steps of the moving average."""
_LABEL_LIMIT = 60
"""Characters of a label in the legend."""
COLOURS = (
    "tab:blue",
    "tab:green",
    "tab:orange",
    "tab:purple",
    "tab:red",
    "tab:brown",
    "tab:pink",
    "tab:olive",
    "tab:cyan",
    "tab:gray",
)
TOTALS = ("reward/mean", "reward/std", "reward/constant_share")
"""Suffixes of metrics under "reward/" that are not reward parts."""

Draw = Callable[[Any, Sequence[JsonObject], Sequence[JsonObject]], bool]
"""Draws onto axes from the lines of steps and of evaluations; False if they hold no values."""


def draw_plots(
    folder: Path, out: Path | None = None, *, kinds: Sequence[str] = ("png",)
) -> list[Path]:
    """Draw the plots of the run in `folder`. A plot for which the run has no values is left out.

    Args:
        folder: The run folder.
        out: Where the files are written; by default the run folder.
        kinds: File types, such as png, svg and pdf.

    Returns:
        The paths of the files; empty if no step was logged.

    Raises:
        ConfigError: a line of metrics.jsonl is damaged.
        MissingExtraError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("drawing plots", "train", package="matplotlib") from None
    lines = list(RunFolder(folder).metric_lines())
    steps = [line for line in lines if kind_of(line) is Kind.STEP]
    evals = [line for line in lines if kind_of(line) is Kind.EVALUATION]
    paths = []
    for name, draw in PICTURES.items():
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        if not steps or not draw(figure.subplots(), steps, evals):
            continue
        for kind in kinds:
            paths.append((out or folder) / f"{name}.{kind}")
            picture = io.BytesIO()
            figure.savefig(picture, dpi=120, format=kind)
            write_whole(paths[-1], picture.getvalue())
    return paths


def _draw_training_curve(
    axis: Any, steps: Sequence[JsonObject], evals: Sequence[JsonObject]
) -> bool:
    """Draw reward and pass rate, in training and held-out; for a warm start (SFT), its loss."""
    if "reward/mean" not in steps[0]:
        _draw_series(axis, steps, "loss", "loss", COLOURS[0])
        return _finish_axes(axis, "nats per token")
    for name, label, colour in (
        ("reward/mean", "reward", COLOURS[0]),
        ("pass_rate", "pass rate", COLOURS[1]),
    ):
        _draw_series(axis, steps, name, f"{label} (training)", colour)
        points = [
            (line["step"], line[f"eval/{name}"])
            for line in evals
            if line.get(f"eval/{name}") is not None
        ]
        axis.plot(
            [step for step, _ in points],
            [value for _, value in points],
            "o--",
            color=colour,
            label=f"{label} (held-out)",
        )
    return _finish_axes(axis, "reward and pass rate")


def _draw_kl(axis: Any, steps: Sequence[JsonObject], evals: Sequence[JsonObject]) -> bool:
    """Draw the KL to the reference policy, per token, and per completion on a second axis."""
    if all(line.get("kl") is None for line in steps):
        return False
    _draw_series(axis, steps, "kl", "KL to the reference, per token", COLOURS[4])
    right = axis.twinx()
    _draw_series(right, steps, "kl/sequence", "per completion", COLOURS[2])
    right.set_ylabel("nats per completion")
    _finish_axes(axis, "nats per token")
    axis.legend(
        handles=[*axis.get_legend_handles_labels()[0], *right.get_legend_handles_labels()[0]]
    )
    return True


def _draw_reward_parts(axis: Any, steps: Sequence[JsonObject], evals: Sequence[JsonObject]) -> bool:
    """Draw the mean value of every reward part, without its weight.

    It shows whether the form of an answer is learned, or the answer itself.
    """
    names = [name for name in steps[-1] if "reward/" in name and not name.endswith(TOTALS)]
    for name, colour in zip(names, cycle(COLOURS), strict=False):
        _draw_series(axis, steps, name, name.replace("reward/", ""), colour)
    return bool(names) and _finish_axes(axis, "value of each reward part")


def _draw_time(axis: Any, steps: Sequence[JsonObject], evals: Sequence[JsonObject]) -> bool:
    """Draw the seconds of each phase of a step, and those inside each reward function."""
    for name, colour in zip(
        _metric_names(steps, "time/", excluded="time/load"), cycle(COLOURS), strict=False
    ):
        _draw_series(axis, steps, name, name.removeprefix("time/"), colour)
    for name, colour in zip(
        _metric_names(steps, "verify/seconds/"), cycle(COLOURS[::-1]), strict=False
    ):
        _draw_series(
            axis, steps, name, f"in {name.replace('verify/seconds/', '')}", colour, style=":"
        )
    axis.set_yscale("log")  # a reward function may take a millionth of the time of generation
    return _finish_axes(axis, "seconds per step")


PICTURES: dict[str, Draw] = {
    "training_curve": _draw_training_curve,
    "kl_divergence": _draw_kl,
    "reward_parts": _draw_reward_parts,
    "time": _draw_time,
}


def _metric_names(steps: Sequence[JsonObject], prefix: str, *, excluded: str = "") -> Iterator[str]:
    """Return the names of nonzero metrics under `prefix`, for each environment of a mixture too."""
    return (
        name
        for name in steps[-1]
        if prefix in name and name != excluded and any(line.get(name) for line in steps)
    )


def _draw_series(
    axis: Any, lines: Sequence[JsonObject], name: str, label: str, colour: str, *, style: str = "-"
) -> None:
    """Draw every step as a thin line, and over it the mean of the last `SMOOTH` steps."""
    measured = [(line["step"], line[name]) for line in lines if line.get(name) is not None]
    x, y = [step for step, _ in measured], [value for _, value in measured]
    smooth = [fmean(y[max(0, i - SMOOTH + 1) : i + 1]) for i in range(len(y))]
    axis.plot(x, y, color=colour, alpha=0.25, linewidth=1)
    # matplotlib reads text between dollars as a formula, and leaves out labels with a leading
    # underscore.
    shown = printable(label, lines=False, limit=_LABEL_LIMIT).replace("$", r"\$")
    axis.plot(x, smooth, style, color=colour, label=f" {shown}" if shown.startswith("_") else shown)


def _finish_axes(axis: Any, y_label: str) -> bool:
    """Label the axes, add grid and legend, and return True."""
    axis.set_xlabel("step")
    axis.set_ylabel(y_label)
    axis.grid(alpha=0.3)
    axis.legend()
    return True
