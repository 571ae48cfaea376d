"""Random valid machines: what a policy has to beat, and what a cold start can be made of."""

from __future__ import annotations

import random
from collections.abc import Collection

from grpo_env_besiege.blocks import BLOCKS, ROOT
from grpo_env_besiege.tree import Block, End, Tree
from grpo_env_besiege.validity import check_tree

_TRIES = 20


def grow(rng: random.Random, *, size: int, types: Collection[str]) -> Tree:
    """Up to `size` blocks of these types, each at a random free place; fewer if no place is found in 20 tries a block."""
    tree: Tree = (Block(ROOT),)
    kinds = sorted(set(types) - {ROOT})
    for _ in range(_TRIES * size):
        if len(tree) == size:
            break
        kind = rng.choice(kinds)
        grown = (*tree, Block(kind, tuple(_end(rng, tree) for _ in range(BLOCKS[kind].ends))))
        if check_tree(grown).valid:
            tree = grown
    return tree


def _end(rng: random.Random, tree: Tree) -> End:
    parent = rng.choice([number for number, block in enumerate(tree) if BLOCKS[block.type].points])
    return End(parent, rng.randrange(len(BLOCKS[tree[parent].type].points)))
