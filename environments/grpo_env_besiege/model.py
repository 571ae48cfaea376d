"""Compiles a machine and a level to a MuJoCo model, with the indices that a run needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np

from grpo_env_besiege.assembly import Assembly, Mount, RigidGroup, apart, kind_of
from grpo_env_besiege.levels import Level, Place
from grpo_env_besiege.links import close_loops, link
from grpo_env_besiege.parts import PARTS
from grpo_env_besiege.physics import Physics
from grpo_env_besiege.terrain import LOAD, add_terrain
from grpo_env_besiege.validity import Machine

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class CompiledMachine:
    """A compiled model."""

    compiled: Any
    """MuJoCo's model."""
    bodies: Array
    """Id of each block's body; [blocks]."""
    middles: Array
    """Middle of each block in the axes of its body, in m; [blocks, 3]."""
    own: Array
    """Ids of the machine's bodies, without those that lie on it loosely."""
    masses: Array
    """Masses of the bodies in `own`, in kg."""
    root: int
    """Id of the root's body, the first in `own`."""
    power: Array
    """Target of each motor once there is power."""
    mounts: tuple[tuple[int, Mount], ...]
    """The links that may break, each with the id of its equality constraint."""
    load: int | None
    """Id of the body of the level's ball, if there is one."""


def build(machine: Machine, level: Level, physics: Physics) -> CompiledMachine:
    """Build and compile the model of a machine in a level."""
    assembly = Assembly(mujoco.MjSpec(), machine, physics)
    add_terrain(assembly.spec, level, physics)
    for number, (block, placed) in enumerate(zip(machine.tree, machine.placed, strict=True)):
        part = link if placed.to is not None else PARTS[kind_of(block).motion]
        base, tip = part(assembly, number, block, placed)
        assembly.bases.append(base)
        assembly.tips.append(tip)
    close_loops(assembly)
    compiled = assembly.spec.compile()
    spots = [_spot(assembly, number) for number in range(len(machine.tree))]
    loose = {group.name for group in assembly.loose}
    own = np.array(
        [_body(compiled, group.name) for group in assembly.groups if group.name not in loose]
    )
    return CompiledMachine(
        compiled=compiled,
        bodies=np.array([_body(compiled, group.name) for group, _ in spots]),
        middles=np.array([middle for _, middle in spots]),
        own=own,
        masses=compiled.body_mass[own],
        root=int(own[0]),
        power=np.array(assembly.power),
        mounts=tuple((_equality(compiled, mount.name), mount) for mount in assembly.mounts),
        load=None if level.load is None else _body(compiled, LOAD),
    )


def _spot(assembly: Assembly, number: int) -> tuple[RigidGroup, Place]:
    """Return the group in which a block is observed, and the block's middle in that group."""
    block, placed = assembly.machine.tree[number], assembly.machine.placed[number]
    motion = kind_of(block).motion
    group = assembly.tips[number] if motion in ("wheel", "loose") else assembly.bases[number]
    if placed.to is None:
        middle = assembly.spot(placed, kind_of(block).middle)
    else:
        a, b = assembly.metres(placed.at), assembly.metres(placed.to)
        middle = ((a[0] + b[0]) / 2, (a[1] + b[1]) / 2, (a[2] + b[2]) / 2)
    return group, apart(middle, group.origin)


def _body(compiled: Any, name: str) -> int:
    return int(mujoco.mj_name2id(compiled, mujoco.mjtObj.mjOBJ_BODY, name))


def _equality(compiled: Any, name: str) -> int:
    return int(mujoco.mj_name2id(compiled, mujoco.mjtObj.mjOBJ_EQUALITY, name))
