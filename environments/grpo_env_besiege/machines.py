"""Reference machines: the two examples of the paper, and some of this package for both tasks."""

from __future__ import annotations

from collections.abc import Mapping

from grpo_env_besiege.tree import BlockEnd, MachineBlock, Tree


def tree(*blocks: tuple[str | int, ...]) -> Tree:
    """Build a tree of the root and then blocks given as numbers.

    Args:
        blocks: Each is (type, parent, point), or (type, parent a, point a, parent b, point b).
    """
    built = [MachineBlock("0")]
    for kind, *numbers in blocks:
        ends = [int(number) for number in numbers]
        built.append(
            MachineBlock(
                str(kind),
                tuple(BlockEnd(*pair) for pair in zip(ends[::2], ends[1::2], strict=True)),
            )
        )
    return tuple(built)


PAPER_CAR = tree((1, 0, 0), (1, 0, 1), (2, 1, 2), (2, 1, 4), (2, 2, 2), (2, 2, 4))
PAPER_CATAPULT = tree(
    (1, 0, 1),
    (63, 1, 1),
    (63, 1, 3),
    (63, 2, 6),
    (63, 3, 6),
    (22, 4, 4),
    (15, 6, 3),
    (63, 7, 3),
    (15, 7, 4),
    (15, 8, 0),
    (30, 10, 3),
    (36, 11, 0),
    (63, 0, 0),
    (9, 13, 1, 9, 1),
    (9, 13, 3, 9, 2),
)

_CROSS: tuple[tuple[int, int, int], ...] = ((63, 0, 0), (63, 0, 1), (63, 0, 2), (63, 0, 3))
"""Four logs around the root, so that the machine does not topple."""

SIX_WHEELS = tree(
    (63, 0, 0),
    (63, 0, 1),
    (2, 0, 2),
    (2, 0, 3),
    *((2, log, side) for log in (1, 2) for side in (3, 6)),
)
SPRUNG_CAR = tree(
    (1, 0, 0),
    (1, 0, 1),
    *((16, beam, side) for beam in (1, 2) for side in (2, 4)),
    *((2, leg, 0) for leg in (3, 4, 5, 6)),
)
HEAVY_CAR = tree(
    (1, 0, 0),
    (1, 0, 1),
    (2, 1, 2),
    (2, 1, 4),
    (2, 2, 2),
    (2, 2, 4),
    (35, 1, 6),
    (35, 2, 6),
    (35, 0, 4),
)
SLED = tree(*_CROSS)
ROTOR_CATAPULT = tree(
    *_CROSS,
    (15, 0, 4),
    (22, 5, 2),
    (63, 6, 2),
    (15, 7, 0),
    (30, 8, 3),
    (36, 9, 0),
    (35, 1, 0),
    (35, 2, 0),
)
SHORT_CATAPULT = tree(
    *_CROSS, (15, 0, 4), (22, 5, 2), (1, 6, 2), (30, 7, 6), (36, 8, 0), (35, 1, 0), (35, 2, 0)
)
BAND_CATAPULT = tree(
    *_CROSS,
    (15, 0, 4),
    (5, 5, 3),
    (63, 6, 0),
    (15, 7, 0),
    (30, 8, 3),
    (36, 9, 0),
    (63, 1, 9),
    *((35, log, 0) for log in (1, 3, 4)),
    *((9, 11, 0, 7, point) for point in (9, 3, 6, 8)),
)

MACHINES: Mapping[str, Tree] = {
    "paper car": PAPER_CAR,
    "six wheels": SIX_WHEELS,
    "sprung car": SPRUNG_CAR,
    "heavy car": HEAVY_CAR,
    "sled": SLED,
    "paper catapult": PAPER_CATAPULT,
    "rotor catapult": ROTOR_CATAPULT,
    "short catapult": SHORT_CATAPULT,
    "band catapult": BAND_CATAPULT,
}
