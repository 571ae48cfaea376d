"""Checks whether an answer is a machine that can be built.

File, structure, size and overlap are checked in this order, with one reason for each fault.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from grpo_env_besiege.blocks import BLOCKS
from grpo_env_besiege.geometry import Placed, bounds, place
from grpo_env_besiege.reading import read_entries
from grpo_env_besiege.tree import MachineBlock, MachineFault, Stage, Tree, read_tree

LIMITS = (("wide (x)", 1700), ("high (y)", 950), ("long (z)", 1700))
_CONTAINER = "30"


@dataclass(frozen=True, slots=True)
class Machine:
    """A tree with the places of its blocks."""

    tree: Tree
    """The blocks."""
    placed: tuple[Placed, ...]
    """The place of each block."""


@dataclass(frozen=True, slots=True)
class CheckedMachine:
    """An answer's machine and its faults."""

    machine: Machine | None
    """The machine, even if it is too large or overlaps itself; None if the file or the structure is
    at fault."""
    faults: tuple[MachineFault, ...]
    """What is wrong with the machine."""

    @property
    def valid(self) -> bool:
        """Return whether the machine has no faults."""
        return not self.faults

    def passes(self, stage: Stage) -> bool:
        """Return whether the check of this stage was reached and passed."""
        stages = {fault.stage for fault in self.faults}
        reached = stage == "file" or "file" not in stages
        reached = reached and (stage in ("file", "structure") or "structure" not in stages)
        return reached and stage not in stages


def check(text: str) -> CheckedMachine:
    """Read an answer and check the machine in it."""
    entries, faults = read_entries(text)
    if faults:
        return CheckedMachine(None, faults)
    tree, faults = read_tree(entries)
    return CheckedMachine(None, faults) if faults else check_tree(tree)


def check_tree(tree: Tree) -> CheckedMachine:
    """Check size and overlap of a tree whose structure is valid."""
    machine = Machine(tree, place(tree))
    return CheckedMachine(machine, (*_too_large(machine.placed), *_overlaps(tree, machine.placed)))


def _too_large(placed: Sequence[Placed]) -> Iterator[MachineFault]:
    low, high = bounds(placed)
    for (name, most), start, end in zip(LIMITS, low, high, strict=True):
        if end - start > most:
            yield MachineFault(
                "size",
                f"the machine is {(end - start) / 100:g} {name}; at most {most / 100:g} is allowed",
            )


def _overlaps(tree: Tree, placed: Sequence[Placed]) -> Iterator[MachineFault]:
    """Yield the overlaps of blocks.

    Blocks that touch do not overlap. A block that stands directly on a Container may reach into it;
    linear blocks take no room.
    """
    solid = [number for number, block in enumerate(placed) if block.to is None]
    for a, b in combinations(solid, 2):
        if _overlap(placed[a], placed[b]) and not _is_in_container(tree[a], tree[b], a):
            yield MachineFault(
                "spatial",
                f"a {BLOCKS[tree[b].type].name} overlaps block {a}, a {BLOCKS[tree[a].type].name}",
                b,
            )


def _overlap(a: Placed, b: Placed) -> bool:
    return all(
        low < high
        for low, high in zip(map(max, a.low, b.low), map(min, a.high, b.high), strict=True)
    )


def _is_in_container(earlier: MachineBlock, later: MachineBlock, number: int) -> bool:
    return earlier.type == _CONTAINER and later.ends[0].parent == number
