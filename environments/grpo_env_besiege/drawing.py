"""Draws a machine and its run by matplotlib: its boxes, and paths of its parts from the side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.animation import FuncAnimation, PillowWriter
from matplotlib.figure import Figure
from mpl_toolkits.mplot3d.art3d import Poly3DCollection

from grpo_env_besiege.blocks import BLOCKS, BOULDER, Motion
from grpo_env_besiege.trajectory import Frame, Trajectory, Turn
from grpo_env_besiege.validity import Machine

COLOURS: dict[Motion, str] = {
    "wheel": "#4c72b0",
    "spin": "#dd8452",
    "bowl": "#8c613c",
    "loose": "#555555",
    "link": "#c44e52",
}
WOOD = "#ccb974"
FACES = ((0, 1, 3, 2), (4, 5, 7, 6), (0, 1, 5, 4), (2, 3, 7, 6), (0, 2, 6, 4), (1, 3, 7, 5))
CORNERS = np.array([(x, y, z) for x in (-0.5, 0.5) for y in (-0.5, 0.5) for z in (-0.5, 0.5)])
RIM = 16
"""Number of corners of a round block's outline."""
FRAMES_PER_SECOND = 5


def draw(machine: Machine, trajectory: Trajectory | None, folder: Path) -> Sequence[Path]:
    """Write machine.png, and for a machine that ran run.png and run.gif; return the paths.

    No window of matplotlib is ever opened.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"font.size": 9}):
        paths = [_draw_machine(machine, folder / "machine.png")]
        if trajectory is not None and len(trajectory.frames) > 1:
            paths += [
                _draw_paths(machine, trajectory, folder / "run.png"),
                _draw_animation(machine, trajectory, folder / "run.gif"),
            ]
    return paths


def _draw_machine(machine: Machine, path: Path) -> Path:
    figure = Figure(figsize=(6, 5))
    axes: Any = figure.add_subplot(projection="3d")
    for number, placed in enumerate(machine.placed):
        middle = (np.array(placed.low) + np.array(placed.high)) / 200
        if placed.to is not None:
            ends = np.array([placed.at, placed.to]) / 100
            axes.plot(ends[:, 0], ends[:, 2], ends[:, 1], color=COLOURS["link"], linewidth=2)
        else:
            corners, faces = _shape(machine, number)
            solid = (middle + corners)[:, [0, 2, 1]]
            axes.add_collection3d(
                Poly3DCollection(
                    [solid[list(face)] for face in faces],
                    facecolor=_colour(machine, number),
                    edgecolor="black",
                    linewidths=0.3,
                )
            )
    _set_limits(axes, machine)
    axes.set_title(f"{len(machine.tree)} blocks", loc="left")
    figure.savefig(path, dpi=110)
    return path


def _draw_paths(machine: Machine, trajectory: Trajectory, path: Path) -> Path:
    """Draw the paths of the root and of the boulder, if there is one, from the side."""
    figure = Figure(figsize=(8, 3.5), layout="constrained")
    axes = figure.add_subplot()
    parts = [
        ("root", 0),
        *(
            ("boulder", number)
            for number, block in enumerate(machine.tree)
            if block.type == BOULDER
        ),
    ]
    for name, number in parts:
        places = np.array([frame.blocks[number].middle for frame in trajectory.frames])
        axes.plot(places[:, 2], places[:, 1], marker=".", label=name)
    axes.axhline(0, color="#999999", linewidth=1)
    axes.set(
        xlabel="forward (m)",
        ylabel="height (m)",
        title=f"every 0.2 s for {trajectory.frames[-1].seconds:g} s",
    )
    axes.legend(frameon=False)
    figure.savefig(path, dpi=110)
    return path


def _draw_animation(machine: Machine, trajectory: Trajectory, path: Path) -> Path:
    figure = Figure(figsize=(8, 3.5), layout="constrained")
    axes = figure.add_subplot()
    places = np.array([pose.middle for frame in trajectory.frames for pose in frame.blocks])
    low, high = places.min(axis=0), places.max(axis=0)

    def show(frame: Frame) -> None:
        axes.clear()
        for number, pose in enumerate(frame.blocks):
            if machine.placed[number].to is None:
                corners = np.array(pose.middle) + _shape(machine, number)[0] @ _matrix(pose.turn).T
                axes.fill(
                    *_outline(corners[:, [2, 1]]).T,
                    color=_colour(machine, number),
                    alpha=0.8,
                    edgecolor="black",
                    linewidth=0.4,
                )
        axes.axhline(0, color="#999999", linewidth=1)
        axes.set(
            xlim=(low[2] - 3, high[2] + 3),
            ylim=(-1, high[1] + 3),
            aspect="equal",
            xlabel="forward (m)",
            title=f"{frame.seconds:.1f} s",
        )

    FuncAnimation(figure, show, frames=trajectory.frames, interval=1000 / FRAMES_PER_SECOND).save(
        path, writer=PillowWriter(FRAMES_PER_SECOND)
    )
    return path


def _shape(machine: Machine, number: int) -> tuple[Any, Sequence[Sequence[int]]]:
    """Return a block's corners around its middle, as it was built, and the faces between them.

    Wheels and boulders are round.
    """
    placed = machine.placed[number]
    size = (np.array(placed.high) - np.array(placed.low)) / 100
    if BLOCKS[machine.tree[number].type].motion not in ("wheel", "loose"):
        return CORNERS * size, FACES
    axis = int(size.argmin())
    angles = np.arange(RIM) * 2 * np.pi / RIM
    ring = np.stack([np.cos(angles) / 2, np.sin(angles) / 2], axis=1)
    corners = np.concatenate([np.insert(ring, axis, side, axis=1) for side in (-0.5, 0.5)]) * size
    sides = [(i, (i + 1) % RIM, RIM + (i + 1) % RIM, RIM + i) for i in range(RIM)]
    return corners, [range(RIM), range(RIM, 2 * RIM), *sides]


def _set_limits(axes: Any, machine: Machine) -> None:
    lows, highs = (
        np.array([getattr(placed, end) for placed in machine.placed]) / 100
        for end in ("low", "high")
    )
    low, high = lows.min(axis=0), highs.max(axis=0)
    middle, half = (low + high) / 2, max(1.0, float((high - low).max()) / 2)
    for axis, name, at in zip(
        "xyz", ("right (m)", "forward (m)", "up (m)"), (0, 2, 1), strict=True
    ):
        axes.set(**{f"{axis}lim": (middle[at] - half, middle[at] + half), f"{axis}label": name})


def _colour(machine: Machine, number: int) -> str:
    return COLOURS.get(BLOCKS[machine.tree[number].type].motion, WOOD)


def _matrix(turn: Turn) -> Any:
    """Return the rotation matrix of a quaternion (w, x, y, z)."""
    w, x, y, z = turn
    return np.array(
        [
            (1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)),
            (2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)),
            (2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)),
        ]
    )


def _outline(points: Any) -> Any:
    """Return the convex hull of points in the plane, in order (Andrew's monotone chain)."""
    ordered = sorted(map(tuple, points.tolist()))

    def half(side: list[Any]) -> list[Any]:
        chain: list[Any] = []
        for point in side:
            while len(chain) > 1 and _turns_right(chain[-2], chain[-1], point):
                chain.pop()
            chain.append(point)
        return chain[:-1]

    return np.array(half(ordered) + half(ordered[::-1]))


def _turns_right(a: Any, b: Any, c: Any) -> bool:
    return bool((b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0]) <= 0)
