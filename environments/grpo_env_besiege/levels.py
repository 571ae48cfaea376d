"""The levels as data: obstacles, the time of a run, the allowed types of blocks, and the goal.

Lengths are in metres, in the axes of the game (x right, y up, z forward). The machine stands on the
ground, centred at the origin.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Family = Literal["car", "catapult", "delivery"]
Place = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Bar:
    """A box that does not move."""

    middle: Place
    size: Place
    tilt: float = 0.0
    """Degrees by which its front end is raised."""
    turn: float = 0.0
    """Degrees by which it is turned to the right."""
    slippery: bool = False
    """Whether it has no friction, as the walls of roads."""


@dataclass(frozen=True, slots=True)
class Roller:
    """A lying cylinder across the road, which does not move."""

    middle: Place
    radius: float
    length: float


@dataclass(frozen=True, slots=True)
class Goal:
    """The goal of a level."""

    kind: Literal["zone", "ring", "hoop"]
    """zone: the load has to come within the radius, on the ground. ring: the boulder has to land
    within the radius. hoop: the boulder has to fly through it, forwards."""
    middle: Place
    radius: float


@dataclass(frozen=True, slots=True)
class Level:
    """A level."""

    name: str
    """Family and level, such as "car/road"."""
    family: Family
    """The family, which is also the environment."""
    difficulty: float
    """Number in 0..1 that orders the levels of a family."""
    seconds: float
    """Length of a run."""
    allowed: frozenset[str]
    """The types of blocks that may be used."""
    obstacles: tuple[Bar | Roller, ...] = ()
    """The obstacles on the ground."""
    path: tuple[tuple[float, float], ...] = ((0.0, 0.0), (0.0, 1000.0))
    """Line of points (x, z) along which a car's distance is measured."""
    goal: Goal | None = None
    """The goal, if there is one."""
    load: tuple[float, float, Place] | None = None
    """Radius, mass (kg) and place of a ball."""
    wind: Place = (0.0, 0.0, 0.0)
    """Wind in m/s, which acts on everything as thick air would."""


_CAR = frozenset({"0", "1", "2", "9", "15", "16", "22", "35", "41", "63"})
_CATAPULT = _CAR | {"5", "7", "30", "36"}
_CURVES = _CAR | {"19", "40"}


def _walls(half: float, *, end: float = 980.0) -> tuple[Bar, ...]:
    """Return the walls on both sides of a road and behind the start."""
    middle, length = (end - 20) / 2, end + 20
    sides = (Bar((side * half, 0, middle), (1, 10, length), slippery=True) for side in (1, -1))
    return (*sides, Bar((0, 0, -16), (30, 10, 1), slippery=True))


def _fence(half: float, *, high: float = 1.5) -> tuple[Bar, ...]:
    """Return walls on all four sides of the machine."""
    return (
        *(Bar((side * half, high / 2, 0), (0.8, high, 2 * half)) for side in (1, -1)),
        *(Bar((0, high / 2, side * half), (2 * half, high, 0.8)) for side in (1, -1)),
    )


def _quarter_pipe(
    z: float, *, radius: float, degrees: float, width: float, slabs: int = 5
) -> tuple[Bar, ...]:
    """Return a ramp of slabs that grows steeper, with a drop behind it."""
    step, thick = math.radians(degrees) / slabs, 0.3
    ramp = []
    for number in range(slabs):
        slope = (number + 0.5) * step
        y, along = radius * (1 - math.cos(slope)), z + radius * math.sin(slope)
        middle = (0.0, y - thick / 2 * math.cos(slope), along + thick / 2 * math.sin(slope))
        ramp.append(
            Bar(
                middle,
                (width, thick, 2 * radius * math.sin(step / 2) + 0.05),
                tilt=math.degrees(slope),
            )
        )
    return tuple(ramp)


def _bump(z: float, *, high: float, radius: float, width: float) -> Roller:
    """Return a lying cylinder of which a part of height `high` is above the ground."""
    return Roller((0, high - radius, z), radius, width)


def _bend(
    centre: tuple[float, float], *, radius: float, start: float, slabs: int = 6
) -> tuple[Bar, ...]:
    """Return walls along a quarter of a circle.

    Args:
        centre: Centre of the circle as (x, z).
        start: Direction in which the quarter begins, in degrees; 0 is ahead and 90 right.
    """
    step = 90 / slabs
    length = 2 * radius * math.tan(math.radians(step / 2)) + 0.3
    walls = []
    for number in range(slabs):
        bearing = start + (number + 0.5) * step
        across = math.radians(bearing)
        middle = (centre[0] + radius * math.sin(across), 0.0, centre[1] + radius * math.cos(across))
        walls.append(Bar(middle, (1, 10, length), turn=bearing + 90, slippery=True))
    return tuple(walls)


_ROAD = _walls(12)
_TRACK = _walls(10, end=90)
_GAP = (
    Bar((-8, 0.375, 16), (8, 0.75, 3)),
    Bar((8, 0.375, 16), (8, 0.75, 3)),
    _bump(24, high=0.6, radius=4, width=24),
)
_TURNS = (
    Bar((-10, 0, -2), (1, 10, 29), slippery=True),
    Bar((10, 0, -2), (1, 10, 28), slippery=True),
    Bar((35, 0, 32), (50, 10, 1), slippery=True),
    Bar((35, 0, 12), (50, 10, 1), slippery=True),
    Bar((60, 0, 60), (1, 10, 56), slippery=True),
    Bar((80, 0, 60), (1, 10, 56), slippery=True),
    Bar((0, 0, -16), (30, 10, 1), slippery=True),
    *_bend((10, 12), radius=20, start=-90),
    *_bend((60, 32), radius=20, start=90),
)
_BALL = (1.5, 2.0, (0.0, 1.5, 12.0))

LEVELS: Mapping[str, Level] = {
    level.name: level
    for level in (
        Level("car/road", "car", 0.0, 5, _CAR, _ROAD),
        Level(
            "car/quarter-cylinder",
            "car",
            0.25,
            5,
            _CAR,
            (*_ROAD, _bump(16, high=0.8, radius=5, width=24)),
        ),
        Level(
            "car/quarter-pipe",
            "car",
            0.5,
            5,
            _CAR,
            (*_ROAD, *_quarter_pipe(12, radius=4, degrees=40, width=24)),
        ),
        Level("car/gap", "car", 0.75, 5, _CAR, (*_ROAD, *_GAP)),
        Level(
            "car/curves",
            "car",
            1.0,
            20,
            _CURVES,
            _TURNS,
            path=((0, 0), (0, 22), (70, 22), (70, 82)),
        ),
        Level("catapult/field", "catapult", 0.0, 5, _CATAPULT),
        Level("catapult/fence", "catapult", 0.25, 5, _CATAPULT, _fence(11)),
        Level("catapult/wind", "catapult", 0.5, 5, _CATAPULT, _fence(11), wind=(0, 0, -5)),
        Level(
            "catapult/ring",
            "catapult",
            0.75,
            5,
            _CATAPULT,
            _fence(11),
            goal=Goal("ring", (0, 0, 18), 4),
        ),
        Level(
            "catapult/hoop",
            "catapult",
            1.0,
            5,
            _CATAPULT,
            _fence(11),
            goal=Goal("hoop", (0, 5, 13), 3),
        ),
        Level(
            "delivery/push",
            "delivery",
            0.0,
            8,
            _CAR,
            _TRACK,
            goal=Goal("zone", (0, 0, 40), 4),
            load=_BALL,
        ),
        Level(
            "delivery/bumps",
            "delivery",
            0.5,
            8,
            _CAR,
            (*_TRACK, *(_bump(z, high=0.3, radius=3, width=20) for z in (20.0, 25.0, 30.0))),
            goal=Goal("zone", (0, 0, 40), 4),
            load=_BALL,
        ),
        Level(
            "delivery/bar",
            "delivery",
            1.0,
            8,
            _CAR,
            (*_TRACK, Bar((0, 5, 9.6), (20, 3, 1)), _bump(26, high=0.4, radius=4, width=20)),
            goal=Goal("zone", (0, 0, 40), 4),
            load=_BALL,
        ),
    )
}
"""The levels of the original, scaled down so that the machines of this simulation can reach the
rings and the ends."""
