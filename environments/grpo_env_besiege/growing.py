"""Grows random valid machines: a baseline for the policy, and material for a cold start."""

from __future__ import annotations

import random
from collections.abc import Collection

from grpo_env_besiege.blocks import BLOCKS, ROOT
from grpo_env_besiege.tree import BlockEnd, MachineBlock, Tree
from grpo_env_besiege.validity import check_tree

_TRIES = 20


def grow(rng: random.Random, *, size: int, types: Collection[str]) -> Tree:
    """Grow a machine of up to `size` blocks of these types, each at a random free place.

    It has fewer blocks if there were not enough free places in 20 tries for each block.
    """
    tree: Tree = (MachineBlock(ROOT),)
    kinds = sorted(set(types) - {ROOT})
    for _ in range(_TRIES * size):
        if len(tree) == size:
            break
        kind = rng.choice(kinds)
        grown = (
            *tree,
            MachineBlock(kind, tuple(_draw_end(rng, tree) for _ in range(BLOCKS[kind].ends))),
        )
        if check_tree(grown).valid:
            tree = grown
    return tree


def _draw_end(rng: random.Random, tree: Tree) -> BlockEnd:
    parent = rng.choice([number for number, block in enumerate(tree) if BLOCKS[block.type].points])
    return BlockEnd(parent, rng.randrange(len(BLOCKS[tree[parent].type].points)))
