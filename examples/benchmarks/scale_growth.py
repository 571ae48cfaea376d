"""Find out which kind of machine to add next, up to 1,000 of them, and draw it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations
from pathlib import Path

from matplotlib.figure import Figure
from scale_simulation import Costs, Layout, Predicted, simulate

GAIN = 0.02
"""Relative gain below which no more machines are added."""
Growth = list[tuple[Layout, Predicted, str]]
"""Layouts, each with its step and with what was added to the one before."""


def grown(costs: Costs, work: Layout, *, most: int = 1000) -> Growth:
    """Double what helps most, per machine added, until nothing helps or fits.

    In a balanced pipeline, one kind alone may not help, so several are doubled together.

    Args:
        costs: seconds of each piece of work.
        work: the first layout, which says what the work of a step is.
        most: the largest number of machines.
    """
    layout, path = work, [(work, simulate(costs, work), "")]
    kinds = ("trainers", "samplers", "verifiers")
    while True:
        now = path[-1][1].seconds
        options = []
        for chosen in (c for count in (1, 2, 3) for c in combinations(kinds, count)):
            more = replace(layout, **{kind: 2 * getattr(layout, kind) for kind in chosen})
            if more.machines <= most:
                predicted = simulate(costs, more)
                if predicted.seconds <= (1 - GAIN) * now:
                    gain = (now - predicted.seconds) / (more.machines - layout.machines)
                    options.append((gain, ", ".join(chosen), more, predicted))
        if not options:
            return path
        _, chosen_names, layout, predicted = max(options, key=lambda option: option[0])
        path.append((layout, predicted, chosen_names))


def table_of_growth(path: Growth) -> str:
    lines = [
        "| added | trainers | samplers | verifiers | machines | s/step | busiest |",
        "| --- " * 7 + "|",
    ]
    lines += [
        f"| {kind} | {layout.trainers} | {layout.samplers} | {layout.verifiers} "
        f"| {layout.machines} | {predicted.seconds:.2f} | {predicted.busiest} |"
        for layout, predicted, kind in path
    ]
    return "\n".join(lines)


def draw(paths: Mapping[int, Growth], file: Path) -> None:
    """Draw the seconds of a step over the machines, with what was added at each point."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    colours = {
        "": "black",
        "trainers": "tab:red",
        "samplers": "tab:blue",
        "verifiers": "tab:green",
        "several": "tab:purple",
    }
    styles = dict(zip(paths, ("-", "--", ":"), strict=False))
    for staleness, path in paths.items():
        machines = [layout.machines for layout, _, _ in path]
        seconds = [predicted.seconds for _, predicted, _ in path]
        axes.plot(
            machines, seconds, styles[staleness], color="grey", label=f"staleness {staleness}"
        )
        axes.scatter(
            machines, seconds, c=[colours.get(kind, "tab:purple") for _, _, kind in path], zorder=3
        )
    for kind, colour in colours.items():
        axes.scatter([], [], color=colour, label=f"added: {kind}" if kind else "one of each")
    axes.set(xscale="log", yscale="log", xlabel="machines", ylabel="seconds of a step")
    axes.legend()
    figure.savefig(file)
