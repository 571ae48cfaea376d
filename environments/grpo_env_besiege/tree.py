"""A construction tree as data: blocks in build order, each with what it is attached to; read from lists of dicts, written as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from grpo_core.extract import parse_integer
from grpo_env_besiege.blocks import BLOCKS, ROOT

Stage = Literal["file", "structure", "size", "spatial", "task"]
MAX_BLOCKS = 60

SPELLINGS: tuple[tuple[str, ...], ...] = (
    ("id", "order_id", "parent", "bp_id"),
    ("id", "order_id", "parent_a", "bp_id_a", "parent_b", "bp_id_b"),
    ("type", "id", "parent", "face_id"),
    ("type", "id", "parent_a", "face_id_a", "parent_b", "face_id_b"),
)
"""The keys of a block, those of the game's files first, then those of the paper: type, number, then parent and point of each end."""
_MAX_DIGITS = 6


@dataclass(frozen=True, slots=True)
class End:
    """What a block is attached to: a point of an earlier block."""

    parent: int
    point: int


@dataclass(frozen=True, slots=True)
class Block:
    """Its number is its place in the tree. ends: none for the root, two for a block between two others, one for every other."""

    type: str
    ends: tuple[End, ...] = ()


Tree = tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a machine is not valid, in its builder's own terms."""

    stage: Stage
    reason: str
    block: int | None = None

    def __str__(self) -> str:
        return self.reason if self.block is None else f"block {self.block}: {self.reason}"


def read_tree(entries: Sequence[dict[str, Any]]) -> tuple[Tree, tuple[Fault, ...]]:
    """The blocks, and what is wrong with the structure; an illegal block makes those attached to it illegal, too."""
    if len(entries) > MAX_BLOCKS:
        return (), (
            Fault(
                "structure",
                f"the machine has {len(entries)} blocks; at most {MAX_BLOCKS} are allowed",
            ),
        )
    tree: list[Block] = []
    faults: dict[int, Fault] = {}
    for number, entry in enumerate(entries):
        block, reason = _read_block(entry, number)
        tree.append(block)
        reason = reason or next(_wrong_ends(block, number, tree, faults), None)
        if reason is not None:
            faults[number] = Fault("structure", reason, number)
    return tuple(tree), tuple(faults.values())


def _read_block(entry: dict[str, Any], number: int) -> tuple[Block, str | None]:
    """A block that is attached nowhere and why, or the block and None."""
    keys = next((keys for keys in SPELLINGS if entry.keys() == set(keys)), None)
    if keys is None:
        return (
            Block(""),
            f"its keys are {_shown(list(entry))}; a block has {', '.join(SPELLINGS[0])}, or {', '.join(SPELLINGS[1][2:])}",
        )
    kind = str(entry[keys[0]]) if type(entry[keys[0]]) in (int, str) else None
    if kind is None or kind not in BLOCKS:
        return Block(""), f"there is no type {_shown(entry[keys[0]])}"
    numbers = [_integer(entry[key]) for key in keys[1:]]
    for key, found in zip(keys[1:], numbers, strict=True):
        if found is None:
            return Block(kind), f"{key} has to be a whole number; found {_shown(entry[key])}"
    order, *ends = (found for found in numbers if found is not None)
    if order != number:
        return Block(
            kind
        ), f"its {keys[1]} is {order}; blocks are numbered in build order, so this one is {number}"
    block = Block(kind, tuple(End(*pair) for pair in zip(ends[::2], ends[1::2], strict=True)))
    if number > 0:
        return block, None
    if block != Block(ROOT, (End(-1, -1),)):
        return (
            Block(kind),
            f"the first block is the root: type {ROOT}, {keys[1]} 0, parent -1, {keys[-1]} -1; found {_shown(entry)}",
        )
    return Block(ROOT), None


def _wrong_ends(
    block: Block, number: int, tree: Sequence[Block], faults: dict[int, Fault]
) -> Iterator[str]:
    """What is wrong with the places where a block is attached."""
    if number == 0 or not block.ends:
        return
    own = BLOCKS[block.type]
    if len(block.ends) != own.ends:
        yield f"a {own.name} has {'one parent' if own.ends == 1 else 'two parents, a and b'}; found {len(block.ends)}"
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


def _integer(value: object) -> int | None:
    if type(value) is int:
        return value if abs(value) < 10**_MAX_DIGITS else None
    return parse_integer(value, max_digits=_MAX_DIGITS) if isinstance(value, str) else None


def _shown(value: object, *, most: int = 80) -> str:
    """A value as JSON, cut off where it is long."""
    text = json.dumps(value, ensure_ascii=True, default=str)
    return text if len(text) <= most else f"{text[:most]}..."


def to_json(tree: Tree) -> str:
    """The list that `read_tree` reads, a block on each line, with the game's keys."""
    lines = []
    for number, block in enumerate(tree):
        keys = SPELLINGS[1] if len(block.ends) == 2 else SPELLINGS[0]
        ends = [value for end in block.ends or (End(-1, -1),) for value in (end.parent, end.point)]
        lines.append(json.dumps(dict(zip(keys, (block.type, number, *ends), strict=True))))
    return "[\n" + ",\n".join(lines) + "\n]"
