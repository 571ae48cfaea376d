"""Machines to compare with: the paper's two examples, and some of our own for both tasks."""

from __future__ import annotations

from collections.abc import Mapping

from grpo_env_besiege.tree import Block, End, Tree


def tree(*blocks: tuple[str | int, ...]) -> Tree:
    """The root, then blocks as (type, parent, point), or (type, parent a, point a, parent b, point b)."""
    found = [Block("0")]
    for kind, *numbers in blocks:
        ends = [int(number) for number in numbers]
        found.append(Block(str(kind), tuple(End(*pair) for pair in zip(ends[::2], ends[1::2], strict=True))))
    return tuple(found)


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

MACHINES: Mapping[str, Tree] = {"paper car": PAPER_CAR, "paper catapult": PAPER_CATAPULT}
