"""What a run looked like, drawn from its metrics.jsonl alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from pathlib import Path
from statistics import fmean
from typing import Any

from grpo_core.calls.printable import printable
from grpo_core.protocol.errors import MissingExtraError
from grpo_core.runs.lines import read_lines

SMOOTH = 10
_LABEL_LIMIT = 60
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

Line = dict[str, Any]
Draw = Callable[[Any, Sequence[Line], Sequence[Line]], bool]


def draw_plots(
    folder: Path, out: Path | None = None, *, kinds: Sequence[str] = ("png",)
) -> list[Path]:
    """The pictures of the run in `folder`, each in every kind of file (png, svg, pdf), into `out` or the folder itself; none if no step was
    logged. A picture for which the run has no numbers is left out."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("drawing plots", "train", package="matplotlib") from None
    lines = list(read_lines(folder / "metrics.jsonl"))
    steps = [line for line in lines if "loss" in line]
    evals = [line for line in lines if "eval/reward/mean" in line]
    paths = []
    for name, draw in PICTURES.items():
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        if not steps or not draw(figure.subplots(), steps, evals):
            continue
        for kind in kinds:
            paths.append((out or folder) / f"{name}.{kind}")
            figure.savefig(paths[-1], dpi=120)
    return paths


def _training_curve(axis: Any, steps: Sequence[Line], evals: Sequence[Line]) -> bool:
    """Reward and pass rate, in training and held-out; of a warm start its loss."""
    if "reward/mean" not in steps[0]:
        _series(axis, steps, "loss", "loss", COLOURS[0])
        return _finish(axis, "nats per token")
    for name, label, colour in (
        ("reward/mean", "reward", COLOURS[0]),
        ("pass_rate", "pass rate", COLOURS[1]),
    ):
        _series(axis, steps, name, f"{label} (training)", colour)
        found = [(e["step"], e[f"eval/{name}"]) for e in evals if e.get(f"eval/{name}") is not None]
        axis.plot(
            [step for step, _ in found],
            [value for _, value in found],
            "o--",
            color=colour,
            label=f"{label} (held-out)",
        )
    return _finish(axis, "reward and pass rate")


def _kl(axis: Any, steps: Sequence[Line], evals: Sequence[Line]) -> bool:
    """KL to the reference for each token, and for a whole completion on an axis of its own."""
    if all(line.get("kl") is None for line in steps):
        return False
    _series(axis, steps, "kl", "KL to the reference, per token", COLOURS[4])
    right = axis.twinx()
    _series(right, steps, "kl/sequence", "per completion", COLOURS[2])
    right.set_ylabel("nats per completion")
    _finish(axis, "nats per token")
    axis.legend(
        handles=[*axis.get_legend_handles_labels()[0], *right.get_legend_handles_labels()[0]]
    )
    return True


def _reward_parts(axis: Any, steps: Sequence[Line], evals: Sequence[Line]) -> bool:
    """The mean value of every reward part, without its weight: whether the form is learned, or the answers."""
    names = [name for name in steps[-1] if "reward/" in name and not name.endswith(TOTALS)]
    for name, colour in zip(names, cycle(COLOURS), strict=False):
        _series(axis, steps, name, name.replace("reward/", ""), colour)
    return bool(names) and _finish(axis, "value of each reward part")


def _time(axis: Any, steps: Sequence[Line], evals: Sequence[Line]) -> bool:
    """Where the seconds of a step go, and beside them those inside every reward function."""
    for name, colour in zip(
        _measured(steps, "time/", but="time/load"), cycle(COLOURS), strict=False
    ):
        _series(axis, steps, name, name.removeprefix("time/"), colour)
    for name, colour in zip(
        _measured(steps, "verify/seconds/"), cycle(COLOURS[::-1]), strict=False
    ):
        _series(axis, steps, name, f"in {name.replace('verify/seconds/', '')}", colour, style=":")
    axis.set_yscale("log")  # a reward function may take a millionth of what generation takes
    return _finish(axis, "seconds per step")


PICTURES: dict[str, Draw] = {
    "training_curve": _training_curve,
    "kl_divergence": _kl,
    "reward_parts": _reward_parts,
    "time": _time,
}


def _measured(steps: Sequence[Line], prefix: str, *, but: str = "") -> Iterator[str]:
    """Metrics under `prefix`, also those of each environment of a mixture."""
    return (
        name
        for name in steps[-1]
        if prefix in name and name != but and any(line.get(name) for line in steps)
    )


def _series(
    axis: Any, lines: Sequence[Line], name: str, label: str, colour: str, *, style: str = "-"
) -> None:
    """Every step thinly, and the mean over the last few on top."""
    measured = [(line["step"], line[name]) for line in lines if line.get(name) is not None]
    x, y = [step for step, _ in measured], [value for _, value in measured]
    smooth = [fmean(y[max(0, i - SMOOTH + 1) : i + 1]) for i in range(len(y))]
    axis.plot(x, y, color=colour, alpha=0.25, linewidth=1)
    axis.plot(x, smooth, style, color=colour, label=_label(label))


def _label(name: str) -> str:
    """A name for a legend: no formula between dollars, nothing hidden, and not left out for a leading underscore."""
    shown = printable(name, lines=False, limit=_LABEL_LIMIT).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown


def _finish(axis: Any, y_label: str) -> bool:
    axis.set_xlabel("step")
    axis.set_ylabel(y_label)
    axis.grid(alpha=0.3)
    axis.legend()
    return True
