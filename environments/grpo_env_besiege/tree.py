"""Construction trees as data: blocks in build order, each with the points it is attached to.

A tree is read from a list of dicts and written as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from grpo_core.extract import parse_integer
from grpo_core.words import cut
from grpo_env_besiege.blocks import BLOCKS, ROOT

Stage = Literal["file", "structure", "size", "spatial", "task"]
MAX_BLOCKS = 60

SPELLINGS: tuple[tuple[str, ...], ...] = (
    ("id", "order_id", "parent", "bp_id"),
    ("id", "order_id", "parent_a", "bp_id_a", "parent_b", "bp_id_b"),
    ("type", "id", "parent", "face_id"),
    ("type", "id", "parent_a", "face_id_a", "parent_b", "face_id_b"),
)
"""The keys of a block: type, number, then parent and point of each end. First come the keys of the
game's files, then those of the paper."""
_MAX_DIGITS = 6


@dataclass(frozen=True, slots=True)
class BlockEnd:
    """A point of an earlier block, to which a block is attached."""

    parent: int
    point: int


@dataclass(frozen=True, slots=True)
class MachineBlock:
    """A block; its number is its index in the tree."""

    type: str
    """Id of the block's type."""
    ends: tuple[BlockEnd, ...] = ()
    """None for the root, two for a block between two others, one for every other block."""


Tree = tuple[MachineBlock, ...]


@dataclass(frozen=True, slots=True)
class MachineFault:
    """A reason why a machine is not valid."""

    stage: Stage
    """The check that failed."""
    reason: str
    """The reason, in the terms that the builder uses."""
    block: int | None = None
    """Number of the block at fault, if it is a single one."""

    def __str__(self) -> str:
        return self.reason if self.block is None else f"block {self.block}: {self.reason}"


def read_tree(entries: Sequence[dict[str, Any]]) -> tuple[Tree, tuple[MachineFault, ...]]:
    """Read a tree, and return it with the faults of its structure.

    A block that is attached to an illegal block is illegal, too.
    """
    if len(entries) > MAX_BLOCKS:
        return (), (
            MachineFault(
                "structure",
                f"the machine has {len(entries)} blocks; at most {MAX_BLOCKS} are allowed",
            ),
        )
    tree: list[MachineBlock] = []
    faults: dict[int, MachineFault] = {}
    for number, entry in enumerate(entries):
        block, reason = _read_block(entry, number)
        tree.append(block)
        reason = reason or next(_end_faults(block, number, tree, faults), None)
        if reason is not None:
            faults[number] = MachineFault("structure", reason, number)
    return tuple(tree), tuple(faults.values())


def _read_block(entry: dict[str, Any], number: int) -> tuple[MachineBlock, str | None]:
    """Return the block and None, or a block that is attached nowhere and the reason."""
    keys = next((keys for keys in SPELLINGS if entry.keys() == set(keys)), None)
    if keys is None:
        return (
            MachineBlock(""),
            f"its keys are {_abbreviate(list(entry))}; a block has {', '.join(SPELLINGS[0])}, "
            f"or {', '.join(SPELLINGS[1][2:])}",
        )
    kind = str(entry[keys[0]]) if type(entry[keys[0]]) in (int, str) else None
    if kind is None or kind not in BLOCKS:
        return MachineBlock(""), f"there is no type {_abbreviate(entry[keys[0]])}"
    numbers = [_parse_integer(entry[key]) for key in keys[1:]]
    for key, value in zip(keys[1:], numbers, strict=True):
        if value is None:
            return MachineBlock(
                kind
            ), f"{key} has to be a whole number; found {_abbreviate(entry[key])}"
    order, *ends = (value for value in numbers if value is not None)
    if order != number:
        return (
            MachineBlock(kind),
            f"its {keys[1]} is {order}; blocks are numbered in build order, "
            f"so this one is {number}",
        )
    block = MachineBlock(
        kind, tuple(BlockEnd(*pair) for pair in zip(ends[::2], ends[1::2], strict=True))
    )
    if number > 0:
        return block, None
    if block != MachineBlock(ROOT, (BlockEnd(-1, -1),)):
        return (
            MachineBlock(kind),
            f"the first block is the root: type {ROOT}, {keys[1]} 0, parent -1, {keys[-1]} -1; "
            f"found {_abbreviate(entry)}",
        )
    return MachineBlock(ROOT), None


def _end_faults(
    block: MachineBlock, number: int, tree: Sequence[MachineBlock], faults: dict[int, MachineFault]
) -> Iterator[str]:
    """Yield what is wrong with the places where a block is attached."""
    if number == 0 or not block.ends:
        return
    own = BLOCKS[block.type]
    if len(block.ends) != own.ends:
        parents = "one parent" if own.ends == 1 else "two parents, a and b"
        yield f"a {own.name} has {parents}; found {len(block.ends)}"
    for end in block.ends:
        if not 0 <= end.parent < number:
            yield f"its parent is block {end.parent}; it has to be an earlier one, 0..{number - 1}"
        elif end.parent in faults:
            yield f"its parent, block {end.parent}, is illegal"
        else:
            parent = BLOCKS[tree[end.parent].type]
            if not 0 <= end.point < len(parent.points):
                has = f"it has 0..{len(parent.points) - 1}" if parent.points else "it has none"
                yield f"point {end.point} of a {parent.name}; {has}"


def _parse_integer(value: object) -> int | None:
    if type(value) is int:
        return value if abs(value) < 10**_MAX_DIGITS else None
    return parse_integer(value, max_digits=_MAX_DIGITS) if isinstance(value, str) else None


def _abbreviate(value: object, *, most: int = 80) -> str:
    """Return a value as JSON, cut off if it is longer than `most` characters."""
    return cut(json.dumps(value, ensure_ascii=True, default=str), most)


def to_json(tree: Tree) -> str:
    """Return the list that `read_tree` reads, with a block on each line and the game's keys."""
    lines = []
    for number, block in enumerate(tree):
        keys = SPELLINGS[1] if len(block.ends) == 2 else SPELLINGS[0]
        ends = [
            value for end in block.ends or (BlockEnd(-1, -1),) for value in (end.parent, end.point)
        ]
        lines.append(json.dumps(dict(zip(keys, (block.type, number, *ends), strict=True))))
    return "[\n" + ",\n".join(lines) + "\n]"
