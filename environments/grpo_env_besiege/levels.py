"""The levels: what stands in the way, how long a machine runs, what it may be built of and what it is asked to do, as data.

Lengths in metres, axes of the game (x right, y up, z forward), the machine in the middle of the origin and on the ground.
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
    """A box that does not move. tilt: degrees by which its front end is raised; turn: degrees to the right. slippery: without friction,
    as the walls of roads are."""

    middle: Place
    size: Place
    tilt: float = 0.0
    turn: float = 0.0
    slippery: bool = False


@dataclass(frozen=True, slots=True)
class Roller:
    """A cylinder across the road that does not move."""

    middle: Place
    radius: float
    length: float


@dataclass(frozen=True, slots=True)
class Goal:
    """zone: the load has to come within the radius, on the ground. ring: the boulder has to land there. hoop: it has to fly through,
    forwards."""

    kind: Literal["zone", "ring", "hoop"]
    middle: Place
    radius: float


@dataclass(frozen=True, slots=True)
class Level:
    """difficulty: 0..1 orders the levels of a family. path: the line along which a car's way is measured, as (x, z). load: radius and mass
    of a ball, and where it lies. wind: in m/s, felt by everything as thick air would be."""

    name: str
    family: Family
    difficulty: float
    seconds: float
    allowed: frozenset[str]
    obstacles: tuple[Bar | Roller, ...] = ()
    path: tuple[tuple[float, float], ...] = ((0.0, 0.0), (0.0, 1000.0))
    goal: Goal | None = None
    load: tuple[float, float, Place] | None = None
    wind: Place = (0.0, 0.0, 0.0)


_CAR = frozenset({"0", "1", "2", "9", "15", "16", "22", "35", "41", "63"})
_CATAPULT = _CAR | {"5", "7", "30", "36"}
_CURVES = _CAR | {"19", "40"}


def _walls(half: float, *, end: float = 980.0) -> tuple[Bar, ...]:
    """Both sides of a road and the wall behind the start."""
    middle, length = (end - 20) / 2, end + 20
    sides = (Bar((side * half, 0, middle), (1, 10, length), slippery=True) for side in (1, -1))
    return (*sides, Bar((0, 0, -16), (30, 10, 1), slippery=True))


def _fence(half: float, *, high: float = 1.5) -> tuple[Bar, ...]:
    """Walls on all four sides of the machine."""
    return (
        *(Bar((side * half, high / 2, 0), (0.8, high, 2 * half)) for side in (1, -1)),
        *(Bar((0, high / 2, side * half), (2 * half, high, 0.8)) for side in (1, -1)),
    )


def _quarter_pipe(
    z: float, *, radius: float, degrees: float, width: float, slabs: int = 5
) -> tuple[Bar, ...]:
    """A ramp that grows steeper, out of slabs, with a drop behind it."""
    step, thick = math.radians(degrees) / slabs, 0.3
    found = []
    for number in range(slabs):
        slope = (number + 0.5) * step
        y, along = radius * (1 - math.cos(slope)), z + radius * math.sin(slope)
        middle = (0.0, y - thick / 2 * math.cos(slope), along + thick / 2 * math.sin(slope))
        found.append(
            Bar(
                middle,
                (width, thick, 2 * radius * math.sin(step / 2) + 0.05),
                tilt=math.degrees(slope),
            )
        )
    return tuple(found)


def _bump(z: float, *, high: float, radius: float, width: float) -> Roller:
    """The part of a lying cylinder that looks out of the ground."""
    return Roller((0, high - radius, z), radius, width)


def _bend(
    centre: tuple[float, float], *, radius: float, start: float, slabs: int = 6
) -> tuple[Bar, ...]:
    """A quarter of a circle of walls around a point (x, z); start: the direction where it begins, 0: ahead, 90: right."""
    step = 90 / slabs
    length = 2 * radius * math.tan(math.radians(step / 2)) + 0.3
    found = []
    for number in range(slabs):
        bearing = start + (number + 0.5) * step
        across = math.radians(bearing)
        middle = (centre[0] + radius * math.sin(across), 0.0, centre[1] + radius * math.cos(across))
        found.append(Bar(middle, (1, 10, length), turn=bearing + 90, slippery=True))
    return tuple(found)


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
"""Those of the original in smaller measures: rings and ends stand where the machines of this simulation can reach them."""
