"""The types of blocks and the six orientations: data that geometry, simulation and prompts share.

Lengths are whole numbers of centimetres (a unit of the game is 1 m), so that "touching" and
"overlapping" are exact. Axes are those of the game: x right, y up, z forward, left-handed. A
block's own origin is the middle of its back face; its own z axis points away from the parent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Vector = tuple[int, int, int]
Facing = Literal["z+", "z-", "x-", "x+", "y+", "y-"]
Side = Literal["Front", "Back", "Left", "Right", "Up", "Down"]
Motion = Literal[
    "rigid",
    "wheel",
    "spin",
    "hinge",
    "steer",
    "swivel",
    "servo",
    "ball",
    "spring",
    "piston",
    "bowl",
    "loose",
    "link",
]
"""How the simulation treats a block. rigid: as part of the block that it stands on; spin: its sides
1..4 turn; loose: it is joined to nothing."""

ROOT, BOULDER = "0", "36"

AXES: Mapping[Facing, Vector] = {
    "z+": (0, 0, 1),
    "z-": (0, 0, -1),
    "x-": (-1, 0, 0),
    "x+": (1, 0, 0),
    "y+": (0, 1, 0),
    "y-": (0, -1, 0),
}

TURNED: Mapping[Facing, Mapping[Side, Facing]] = {
    "z+": {"Front": "z+", "Back": "z-", "Left": "x-", "Right": "x+", "Up": "y+", "Down": "y-"},
    "z-": {"Front": "z-", "Back": "z+", "Left": "x+", "Right": "x-", "Up": "y+", "Down": "y-"},
    "x-": {"Front": "x-", "Back": "x+", "Left": "z-", "Right": "z+", "Up": "y+", "Down": "y-"},
    "x+": {"Front": "x+", "Back": "x-", "Left": "z+", "Right": "z-", "Up": "y+", "Down": "y-"},
    "y+": {"Front": "y+", "Back": "y-", "Left": "x-", "Right": "x+", "Up": "z-", "Down": "z+"},
    "y-": {"Front": "y-", "Back": "y+", "Left": "x-", "Right": "x+", "Up": "z+", "Down": "z-"},
}
"""By the facing of a block, the direction of each of its sides: the facing alone determines the
orientation."""


@dataclass(frozen=True, slots=True)
class Point:
    """A place where another block can be attached."""

    at: Vector
    """The place from the block's own origin."""
    side: Side
    """The side of the block that the place is on."""


@dataclass(frozen=True, slots=True)
class BlockType:
    """A type of block."""

    type: str
    """The game's id of the type."""
    name: str
    """The type's name in prompts and messages."""
    size: Vector
    """Size of the bounding box."""
    mass: float
    """Mass in kg."""
    points: tuple[Point, ...] = ()
    """Where other blocks can be attached."""
    motion: Motion = "rigid"
    """How the simulation treats it."""
    middle: Vector = (0, 0, 0)
    """Middle of the bounding box, from the block's own origin."""

    @property
    def ends(self) -> int:
        """The number of parents of a block of this type, unless it is the root."""
        return 2 if self.motion == "link" else 1


def _sides(length: int, *, at: tuple[int, ...] = (50,), out: int = 50) -> tuple[Point, ...]:
    """Return a point on the far end, and on each of four sides one for every distance in `at`."""
    ways: tuple[tuple[Side, int, int], ...] = (
        ("Left", -out, 0),
        ("Right", out, 0),
        ("Up", 0, out),
        ("Down", 0, -out),
    )
    return (
        Point((0, 0, length), "Front"),
        *(Point((x, y, z), side) for side, x, y in ways for z in at),
    )


def _front(length: int, *, beside: int = 0) -> tuple[Point, ...]:
    """Return a point in the middle of the far end, and with `beside` four more around it."""
    places = ((0, 0), (-beside, 0), (beside, 0), (0, beside), (0, -beside)) if beside else ((0, 0),)
    return tuple(Point((x, y, length), "Front") for x, y in places)


def _box(
    kind: str,
    name: str,
    size: Vector,
    mass: float,
    points: tuple[Point, ...] = (),
    motion: Motion = "rigid",
    *,
    middle: Vector | None = None,
) -> BlockType:
    return BlockType(
        kind, name, size, mass, points, motion, (0, 0, size[2] // 2) if middle is None else middle
    )


_CUBE, _WHEEL, _DISC = (100, 100, 100), (200, 200, 50), (300, 300, 100)
_FIVE, _FAR = _sides(100), _sides(200, at=(150,))
_RIM = _front(100, beside=150) + _sides(100, out=150)[1:]
_ROOT = tuple(
    Point((50 * x, 50 * y, 50 * z), side)
    for side, (x, y, z) in ((side, AXES[facing]) for side, facing in TURNED["z+"].items())
)

BLOCKS: Mapping[str, BlockType] = {
    block.type: block
    for block in (
        _box("0", "Starting block", _CUBE, 0.25, _ROOT, middle=(0, 0, 0)),
        _box("15", "Small wooden block", _CUBE, 0.3, _FIVE),
        _box("1", "Wooden block", (100, 100, 200), 0.5, _sides(200, at=(50, 150))),
        _box("41", "Wooden rod", (100, 100, 200), 0.5, _sides(200, at=(50, 150))),
        _box("63", "Log", (100, 100, 300), 1.0, _sides(300, at=(50, 150, 250))),
        _box("2", "Powered wheel", _WHEEL, 1.0, _front(50), "wheel"),
        _box("40", "Unpowered wheel", _WHEEL, 1.0, _front(50), "wheel"),
        _box("46", "Large powered wheel", _DISC, 1.0, _RIM, "wheel"),
        _box("60", "Large unpowered wheel", _DISC, 1.0, _RIM, "wheel"),
        _box("22", "Rotating block", _CUBE, 1.0, _FIVE, "spin"),
        _box("16", "Suspension", (100, 100, 200), 0.5, _FAR, "spring"),
        _box("30", "Container", (240, 300, 280), 0.5, _front(100), "bowl"),
        _box("36", "Boulder", (190, 190, 190), 5.0, (), "loose"),
        _box("23", "Bomb", (190, 190, 190), 0.5, (), "loose"),
        _box("35", "Ballast", _CUBE, 3.0, _FIVE),
        _box("9", "Rubber band", (0, 0, 0), 0.4, (), "link"),
        _box("7", "Brace", (0, 0, 0), 0.5, (), "link"),
        _box("45", "Winch", (0, 0, 0), 0.4, (), "link"),
        _box("5", "Hinge", _CUBE, 0.5, _FIVE, "hinge"),
        _box("19", "Swivel joint", _CUBE, 0.5, _FIVE, "swivel"),
        _box("44", "Ball joint", _CUBE, 0.5, _FIVE, "ball"),
        _box("13", "Steering block", _CUBE, 1.0, _FIVE, "servo"),
        _box("28", "Steering hinge", _CUBE, 1.0, _front(100), "steer"),
        _box("18", "Piston", (100, 100, 200), 0.5, _FAR, "piston"),
        _box("18_1", "Retracted piston", _CUBE, 0.5, _FIVE, "piston"),
        _box("76", "Axle joint", _CUBE, 0.5, _front(100), "ball"),
        _box("50", "Small wheel", (50, 100, 150), 0.5),
        _box("86", "Roller", _CUBE, 0.5),
        _box("27", "Gripper", _CUBE, 0.5, _front(100)),
        _box("20", "Spike", (20, 20, 240), 0.5, middle=(0, 0, 125)),
        _box("3", "Blade", (100, 10, 380), 0.5, middle=(0, 0, 200)),
        _box("11", "Cannon", (100, 250, 100), 1.0, middle=(0, -50, 50)),
        _box("49", "Grip pad", (80, 80, 20), 0.3),
        _box("87", "Elastic pad", (80, 80, 20), 0.3),
        _box("6", "Spiked ball", (300, 300, 250), 1.0),
        _box("32", "Large armour plate", (180, 90, 30), 0.5),
        _box("24", "Small armour plate", (90, 90, 30), 0.3),
        _box("29", "Round armour plate", (200, 200, 30), 0.5),
        _box("51", "Large cog", (500, 500, 100), 1.0, _front(100, beside=100), "wheel"),
        _box("39", "Powered cog", (200, 200, 100), 1.0, _front(100), "wheel"),
        _box("17", "Circular saw", _WHEEL, 0.5),
        _box("14", "Propeller", _CUBE, 0.5),
        _box("4", "Decoupler", _CUBE, 0.5, _FIVE),
        _box("74", "Balloon", (300, 300, 300), 0.5, _sides(300, at=(150,), out=150)),
    )
}
"""The 44 types of the original with its sizes and points. The masses of the types listed after the
Steering hinge are estimates; weapons, propeller, gripper and decoupler have no trigger here and are
dead weight."""

POWERED = frozenset({"2", "46", "39"})
"""The types of wheels that a motor drives."""
