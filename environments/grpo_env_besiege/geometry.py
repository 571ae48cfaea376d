"""Computes where every block stands, exactly and from the tree alone.

Places are in whole centimetres from the middle of the root.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grpo_env_besiege.blocks import AXES, BLOCKS, TURNED, Facing, Vector
from grpo_env_besiege.tree import MachineBlock, Tree

CLEARANCE = 50
"""The original sets a machine down with its lowest corner at this height (cm) and its bounding box
centred: the ground adapts to the machine."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Describe where a block stands."""

    at: Vector
    """The block's own origin; of a block between two others, its first end."""
    facing: Facing
    """The direction of the block's own z axis."""
    low: Vector
    """Corner of the block's box with the smallest coordinates."""
    high: Vector
    """Corner of the block's box with the largest coordinates."""
    to: Vector | None = None
    """Second end of a block between two others; None for other blocks."""


def place(tree: Tree) -> tuple[Placed, ...]:
    """Return the places of the blocks of a tree whose structure is valid."""
    places: list[Placed] = []
    for block in tree:
        places.append(
            _placed(
                block,
                [point_of(tree[end.parent], places[end.parent], end.point) for end in block.ends],
            )
        )
    return tuple(places)


def point_of(block: MachineBlock, placed: Placed, point: int) -> tuple[Vector, Facing]:
    """Return where a point of a placed block is, and where it faces."""
    own = BLOCKS[block.type].points[point]
    return add(placed.at, turn(own.at, placed.facing)), TURNED[placed.facing][own.side]


def turn(own: Vector, facing: Facing) -> Vector:
    """Convert a vector from a block's own axes to the machine's axes."""
    sides = TURNED[facing]
    right, up, front = AXES[sides["Right"]], AXES[sides["Up"]], AXES[sides["Front"]]
    x, y, z = own
    return (
        x * right[0] + y * up[0] + z * front[0],
        x * right[1] + y * up[1] + z * front[1],
        x * right[2] + y * up[2] + z * front[2],
    )


def add(a: Vector, b: Vector) -> Vector:
    """Return the sum of two vectors."""
    return (a[0] + b[0], a[1] + b[1], a[2] + b[2])


def _placed(block: MachineBlock, ends: Sequence[tuple[Vector, Facing]]) -> Placed:
    at, facing = ends[0] if ends else ((0, 0, 0), "z+")
    if len(ends) == 2:
        to = ends[1][0]
        low, high = zip(*((min(a, b), max(a, b)) for a, b in zip(at, to, strict=True)), strict=True)
        return Placed(at, facing, low, high, to)
    kind = BLOCKS[block.type]
    middle, size = add(at, turn(kind.middle, facing)), turn(kind.size, facing)
    x, y, z = (abs(length) // 2 for length in size)
    return Placed(at, facing, add(middle, (-x, -y, -z)), add(middle, (x, y, z)))


def bounds(placed: Sequence[Placed]) -> tuple[Vector, Vector]:
    """Return the corners of the machine's box, in which the ends of linear blocks always lie."""
    lows, highs = (
        zip(*(block.low for block in placed), strict=True),
        zip(*(block.high for block in placed), strict=True),
    )
    (x, y, z), (right, top, front) = (
        (min(values) for values in lows),
        (max(values) for values in highs),
    )
    return (x, y, z), (right, top, front)


def ground_shift(
    placed: Sequence[Placed], *, clearance: int = CLEARANCE
) -> tuple[float, float, float]:
    """Return the shift (cm) that centres the machine in x and z, its bottom at `clearance`."""
    low, high = bounds(placed)
    return -(low[0] + high[0]) / 2, float(clearance - low[1]), -(low[2] + high[2]) / 2
