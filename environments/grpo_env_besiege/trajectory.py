"""What a run leaves behind: where everything was every 0.2 s, as plain numbers in the game's axes."""

from __future__ import annotations

from dataclasses import dataclass

from grpo_env_besiege.levels import Place
from grpo_env_besiege.tree import Tree

Turn = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Pose:
    """middle: of the block's box. turn: since it was built, as a quaternion (w, x, y, z)."""

    middle: Place
    turn: Turn


@dataclass(frozen=True, slots=True)
class Frame:
    """seconds: since there was power. centre: of the machine's mass, parts that came off included. held: the share of the mass that still
    holds together with the root. broken: blocks that came off. load: where the level's ball is."""

    seconds: float
    blocks: tuple[Pose, ...]
    centre: Place
    held: float = 1.0
    broken: tuple[int, ...] = ()
    load: Place | None = None


@dataclass(frozen=True, slots=True)
class Flight:
    """Of the boulder, at a finer step than the frames: its highest place, and where it and the machine's centre of mass were when it first
    came down to the ground (or at the end, if it never did)."""

    top: float
    landed: float | None
    at: Place
    centre: Place


@dataclass(frozen=True, slots=True)
class Trajectory:
    """fault: why the run says nothing about the machine; the frames end there."""

    tree: Tree
    frames: tuple[Frame, ...]
    flight: Flight | None = None
    fault: str | None = None
