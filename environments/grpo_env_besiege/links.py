"""Adds links between groups: rubber bands, winches, braces, and free ends that touch a block."""

from __future__ import annotations

import math
from collections.abc import Iterator

import mujoco

from grpo_env_besiege.assembly import Assembly, RigidGroup, apart, kind_of
from grpo_env_besiege.blocks import AXES, Facing, Vector
from grpo_env_besiege.geometry import Placed, point_of
from grpo_env_besiege.levels import Place
from grpo_env_besiege.tree import MachineBlock, Tree

_BRACE, _WINCH = "7", "45"
_CAN_JOIN = frozenset(
    {"rigid", "spin", "hinge", "steer", "swivel", "servo", "ball", "spring", "piston"}
)


def link(
    assembly: Assembly, number: int, block: MachineBlock, placed: Placed
) -> tuple[RigidGroup, RigidGroup]:
    """Add a block between two others: half of its mass at each end, and what it does to them.

    Within a single group it has nothing to hold. Its numbers and returned groups are those of
    `parts.Part`.
    """
    a, b = (assembly.carrier(block, which) for which in (0, 1))
    ends = assembly.metres(placed.at), assembly.metres(placed.to or placed.at)
    for group, end in zip((a, b), ends, strict=True):
        assembly.solid(
            group,
            mujoco.mjtGeom.mjGEOM_SPHERE,
            end,
            (0.1,),
            kind_of(block).mass / 2,
            contype=0,
            conaffinity=0,
        )
    if a is not b:
        if block.type == _BRACE:
            assembly.weld(a, b)
        else:
            _pull(assembly, block, (a, b), ends)
    return a, a


def _pull(
    assembly: Assembly,
    block: MachineBlock,
    groups: tuple[RigidGroup, RigidGroup],
    ends: tuple[Place, Place],
) -> None:
    """Add a rope between two sites.

    Once there is power it pulls with stiffness x (length - rest length), and never pushes. The rope
    of a winch never becomes longer.
    """
    physics = assembly.physics
    target = assembly.name("rope")
    rope = assembly.spec.add_tendon(name=target)
    for group, end in zip(groups, ends, strict=True):
        site = assembly.name("site")
        group.body.add_site(name=site, pos=apart(end, group.origin))
        rope.wrap_site(site)
    rest, stiffness, force = 0.0, physics.band_stiffness, physics.band_force
    if block.type == _WINCH:
        length = math.dist(*ends)
        rest, stiffness, force = (
            max(0.0, length - physics.winch_stroke),
            physics.winch_stiffness,
            physics.winch_force,
        )
        rope.limited, rope.range = 1, (0, length + 0.01)
    motor = assembly.spec.add_actuator(
        name=assembly.name("motor"),
        target=target,
        trntype=mujoco.mjtTrn.mjTRN_TENDON,
        forcelimited=1,
        forcerange=[-force, 0],
    )
    # The force is control x (stiffness x (rest - length) - damping x speed): a gain, so that it is
    # 0 without power.
    motor.gaintype = mujoco.mjtGain.mjGAIN_AFFINE
    motor.gainprm = [stiffness * rest, -stiffness, -physics.band_damping] + [0.0] * (
        len(motor.gainprm) - 3
    )
    assembly.power.append(1.0)


def close_loops(assembly: Assembly) -> None:
    """Join each free far end to the block of another group whose point it touches face to face.

    A part stays free if it turns on the very group that touches it: a wheel is not blocked by the
    beam that it is mounted on.
    """
    joined: set[frozenset[str]] = set()
    for end, other in _touching_blocks(assembly.machine.tree, assembly.machine.placed):
        a, b = (
            assembly.bases[end] if _far_end_is_still(assembly, end) else assembly.tips[end],
            assembly.tips[other],
        )
        pair = frozenset({a.name, b.name})
        if len(pair) == 2 and pair not in joined and assembly.bases[other] is not a:
            assembly.weld(a, b)
            joined.add(pair)


def _far_end_is_still(assembly: Assembly, number: int) -> bool:
    return kind_of(assembly.machine.tree[number]).motion == "spin"


def _touching_blocks(tree: Tree, placed: tuple[Placed, ...]) -> Iterator[tuple[int, int]]:
    """Yield pairs of blocks: the far end of the first touches a point of the second.

    Blocks that are built on each other are left out.
    """
    faces: dict[tuple[Vector, Vector], list[int]] = {}
    for number, block in enumerate(tree):
        for point in range(len(kind_of(block).points)):
            at, facing = point_of(block, placed[number], point)
            faces.setdefault((at, AXES[facing]), []).append(number)
    for number, block in enumerate(tree):
        if kind_of(block).motion not in _CAN_JOIN or not kind_of(block).points or not block.ends:
            continue
        at, facing = point_of(block, placed[number], 0)
        for other in faces.get((at, _opposite(facing)), []):
            if number not in (end.parent for end in tree[other].ends) and other != number:
                yield number, other


def _opposite(facing: Facing) -> Vector:
    x, y, z = AXES[facing]
    return (-x, -y, -z)
