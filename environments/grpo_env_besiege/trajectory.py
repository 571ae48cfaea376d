"""The record of a run: where everything was every 0.2 s, as plain numbers in the game's axes."""

from __future__ import annotations

from dataclasses import dataclass

from grpo_env_besiege.levels import Place
from grpo_env_besiege.tree import Tree

Turn = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Pose:
    """Place and orientation of a block."""

    middle: Place
    """Middle of the block's box."""
    turn: Turn
    """Rotation since it was built, as a quaternion (w, x, y, z)."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The machine at one moment."""

    seconds: float
    """Time since there was power."""
    blocks: tuple[Pose, ...]
    """The pose of each block."""
    centre: Place
    """Centre of the machine's mass, parts that came off included."""
    held: float = 1.0
    """Share of the mass that still holds together with the root."""
    broken: tuple[int, ...] = ()
    """Numbers of the blocks that came off."""
    load: Place | None = None
    """Place of the level's ball, if there is one."""


@dataclass(frozen=True, slots=True)
class Flight:
    """The flight of the boulder, recorded at a finer step than the frames."""

    top: float
    """The boulder's greatest height in m."""
    landed: float | None
    """Time in seconds when it first came down to the ground; None if it never did."""
    at: Place
    """Place of the boulder when it first came down, or at the end."""
    centre: Place
    """Centre of the machine's mass at the same moment."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The run of a machine."""

    tree: Tree
    """The machine."""
    frames: tuple[Frame, ...]
    """A frame every 0.2 s; they end at a fault."""
    flight: Flight | None = None
    """The boulder's flight, if there is a boulder."""
    fault: str | None = None
    """Why the run is not valid, or None."""
