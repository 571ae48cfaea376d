"""Where every block stands: exact, from the tree alone, in whole centimetres from the middle of the root."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grpo_env_besiege.blocks import AXES, BLOCKS, TURNED, Facing, Vector
from grpo_env_besiege.tree import Block, Tree

CLEARANCE = 50
"""The original sets a machine down with its lowest corner this high and its bounding box centred: the ground adapts to the machine."""


@dataclass(frozen=True, slots=True)
class Placed:
    """at: building centre (of a block between two others: its first end, with the second in `to`); low, high: corners of the box."""

    at: Vector
    facing: Facing
    low: Vector
    high: Vector
    to: Vector | None = None


def place(tree: Tree) -> tuple[Placed, ...]:
    """The places of the blocks of a tree whose structure is valid."""
    found: list[Placed] = []
    for block in tree:
        found.append(
            _placed(
                block,
                [point_of(tree[end.parent], found[end.parent], end.point) for end in block.ends],
            )
        )
    return tuple(found)


def point_of(block: Block, placed: Placed, point: int) -> tuple[Vector, Facing]:
    """Where a point of a placed block is, and where it faces."""
    chosen = BLOCKS[block.type].points[point]
    return add(placed.at, turn(chosen.at, placed.facing)), TURNED[placed.facing][chosen.side]


def turn(own: Vector, facing: Facing) -> Vector:
    """A vector in a block's own axes, in those of the machine."""
    sides = TURNED[facing]
    right, up, front = AXES[sides["Right"]], AXES[sides["Up"]], AXES[sides["Front"]]
    x, y, z = own
    return (
        x * right[0] + y * up[0] + z * front[0],
        x * right[1] + y * up[1] + z * front[1],
        x * right[2] + y * up[2] + z * front[2],
    )


def add(a: Vector, b: Vector) -> Vector:
    return (a[0] + b[0], a[1] + b[1], a[2] + b[2])


def _placed(block: Block, ends: Sequence[tuple[Vector, Facing]]) -> Placed:
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
    """The corners of the machine's box. (The ends of linear blocks lie in it anyhow.)"""
    lows, highs = (
        zip(*(one.low for one in placed), strict=True),
        zip(*(one.high for one in placed), strict=True),
    )
    (x, y, z), (right, top, front) = (
        (min(values) for values in lows),
        (max(values) for values in highs),
    )
    return (x, y, z), (right, top, front)


def ground_shift(
    placed: Sequence[Placed], *, clearance: int = CLEARANCE
) -> tuple[float, float, float]:
    """By how much the machine is moved so that its lowest corner is at `clearance` and its box is centred in x and z."""
    low, high = bounds(placed)
    return -(low[0] + high[0]) / 2, float(clearance - low[1]), -(low[2] + high[2]) / 2
