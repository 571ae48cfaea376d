"""Adds each kind of block to the simulation.

A block becomes geoms of its parent's group, or a group of its own on a joint.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import mujoco

from grpo_env_besiege.assembly import SHRINK, Assembly, Joint, RigidGroup, direction, kind_of
from grpo_env_besiege.blocks import POWERED, TURNED, Facing, Motion, Side
from grpo_env_besiege.geometry import Placed
from grpo_env_besiege.tree import MachineBlock

Part = Callable[[Assembly, int, MachineBlock, Placed], tuple[RigidGroup, RigidGroup]]
"""A function that adds a block. It returns two groups: the one that carries the block, and the one
with which other blocks that are attached to it move."""

HINGE, SLIDE, BALL = (
    mujoco.mjtJoint.mjJNT_HINGE,
    mujoco.mjtJoint.mjJNT_SLIDE,
    mujoco.mjtJoint.mjJNT_BALL,
)
_ROD, _FLOOR, _RAIL = "41", 100, 60
_PISTON = "18"
_SPEED_GAIN = 20.0


def _spin_sign(facing: Facing) -> float:
    """Return the sign of a motor's speed, such that facing left and right both drive forwards."""
    return 1.0 if facing == "x-" else -1.0


def rigid(
    assembly: Assembly, number: int, block: MachineBlock, placed: Placed
) -> tuple[RigidGroup, RigidGroup]:
    """Add a block that is part of its parent's group; the root begins a group."""
    own = kind_of(block)
    if block.ends:
        group = assembly.carrier(block)
        if block.type == _ROD:
            group = assembly.mount(
                number, group, assembly.metres(placed.at), force=assembly.physics.rod_force
            )
    else:
        group = assembly.free_group(assembly.metres(placed.at))
    assembly.box(group, placed, own.middle, own.size, own.mass)
    return group, group


def wheel(
    assembly: Assembly, number: int, block: MachineBlock, placed: Placed
) -> tuple[RigidGroup, RigidGroup]:
    """Add a wheel, with a motor if it is powered and stands on a side."""
    own, physics = kind_of(block), assembly.physics
    base = _mounted(assembly, number, block, placed)
    middle = assembly.spot(placed, own.middle)
    axis = direction(placed.facing)
    powered = block.type in POWERED and placed.facing[0] != "y"
    group, joint = assembly.moving_group(
        base, middle, Joint(HINGE, axis, damping=0.0 if powered else physics.joint_damping / 10)
    )
    half = own.size[2] * SHRINK / 200
    ends = [sign * half * part for sign in (-1, 1) for part in axis]
    group.body.add_geom(
        type=mujoco.mjtGeom.mjGEOM_CYLINDER,
        fromto=ends,
        size=[own.size[0] * SHRINK / 200, 0, 0],
        mass=own.mass,
        friction=[physics.wheel_friction, 0.005, 0.0001],
    )
    if powered:
        speed = _spin_sign(placed.facing) * physics.wheel_speed
        assembly.motor(joint, at_power=speed, force=physics.wheel_torque, speed_gain=_SPEED_GAIN)
    return base, group


def spin(
    assembly: Assembly, number: int, block: MachineBlock, placed: Placed
) -> tuple[RigidGroup, RigidGroup]:
    """Add a rotating block: a housing that stands still, and a driven core that turns its sides."""
    own, physics = kind_of(block), assembly.physics
    base = _mounted(assembly, number, block, placed)
    assembly.box(base, placed, own.middle, own.size, own.mass / 2)
    middle = assembly.spot(placed, own.middle)
    group, joint = assembly.moving_group(base, middle, Joint(HINGE, direction(placed.facing)))
    assembly.solid(
        group, mujoco.mjtGeom.mjGEOM_SPHERE, middle, (0.4,), own.mass / 2, contype=0, conaffinity=0
    )
    speed = _spin_sign(placed.facing) * physics.spin_speed
    assembly.motor(joint, at_power=speed, force=physics.spin_torque, speed_gain=10 * _SPEED_GAIN)
    return base, group


def _jointed(kind: Any, side: Side, limit: float | None = None) -> Part:
    """Return the function that adds a block whose two halves turn about an axis.

    Args:
        kind: Type of joint, one of MuJoCo's.
        side: Side of the block to which the axis points.
        limit: Largest angle in radians; None for no limit.
    """

    def part(
        assembly: Assembly, number: int, block: MachineBlock, placed: Placed
    ) -> tuple[RigidGroup, RigidGroup]:
        own, physics = kind_of(block), assembly.physics
        base = _mounted(assembly, number, block, placed)
        assembly.box(base, placed, (0, 0, 25), (100, 100, 50), own.mass / 2)
        axis = direction(TURNED[placed.facing][side])
        limits = None if limit is None else (-limit, limit)
        joint = Joint(kind, axis, limits, damping=physics.joint_damping)
        group, name = assembly.moving_group(base, assembly.spot(placed, (0, 0, 50)), joint)
        assembly.box(group, placed, (0, 0, 75), (100, 100, 50), own.mass / 2)
        if own.motion in ("steer", "servo"):
            assembly.motor(
                name,
                at_power=0.0,
                force=physics.spin_torque,
                stiffness=physics.steer_stiffness,
                speed_gain=_SPEED_GAIN,
            )
        return base, group

    return part


def spring(
    assembly: Assembly, number: int, block: MachineBlock, placed: Placed
) -> tuple[RigidGroup, RigidGroup]:
    """Add a suspension: two halves that slide against a spring."""
    own, physics = kind_of(block), assembly.physics
    base = _mounted(assembly, number, block, placed)
    assembly.box(base, placed, (0, 0, 40), (60, 60, 80), own.mass / 2)
    joint = Joint(
        SLIDE,
        direction(placed.facing),
        (-0.7, 0.2),
        physics.suspension_stiffness,
        physics.suspension_damping,
    )
    group, _ = assembly.moving_group(base, assembly.spot(placed, (0, 0, 150)), joint)
    assembly.box(group, placed, (0, 0, 150), (100, 100, 100), own.mass / 2)
    return base, group


def piston(
    assembly: Assembly, number: int, block: MachineBlock, placed: Placed
) -> tuple[RigidGroup, RigidGroup]:
    """Add a piston, which moves by its stroke: a retracted one out, the other one in."""
    own, physics = kind_of(block), assembly.physics
    long = block.type == _PISTON
    base = _mounted(assembly, number, block, placed)
    half = own.size[2] // 2
    assembly.box(base, placed, (0, 0, half // 2), (60, 60, half), own.mass / 2)
    limits = (-physics.piston_stroke, 0.0) if long else (0.0, physics.piston_stroke)
    joint = Joint(SLIDE, direction(placed.facing), limits)
    group, name = assembly.moving_group(base, assembly.spot(placed, (0, 0, own.size[2])), joint)
    assembly.box(group, placed, (0, 0, own.size[2] - half // 2), (100, 100, half), own.mass / 2)
    stroke = -physics.piston_stroke if long else physics.piston_stroke
    gain = 2 * math.sqrt(physics.piston_stiffness)
    assembly.motor(
        name,
        at_power=stroke,
        force=physics.piston_force,
        stiffness=physics.piston_stiffness,
        speed_gain=gain,
    )
    return base, group


def bowl(
    assembly: Assembly, number: int, block: MachineBlock, placed: Placed
) -> tuple[RigidGroup, RigidGroup]:
    """Add a container: a floor and four low rails, so that a boulder lies in it and can leave."""
    own = kind_of(block)
    group = assembly.carrier(block)
    x, y, _ = own.size
    assembly.box(group, placed, (0, 0, _FLOOR // 2), (100, 100, _FLOOR - 10), own.mass / 2)
    assembly.box(group, placed, (0, 0, _FLOOR - 10), (x, y, 20), own.mass / 4)
    rise = _FLOOR + _RAIL // 2
    for sign in (-1, 1):
        assembly.box(group, placed, (sign * (x // 2 - 10), 0, rise), (20, y, _RAIL), own.mass / 16)
        assembly.box(group, placed, (0, sign * (y // 2 - 10), rise), (x, 20, _RAIL), own.mass / 16)
    return group, group


def loose(
    assembly: Assembly, number: int, block: MachineBlock, placed: Placed
) -> tuple[RigidGroup, RigidGroup]:
    """Add a ball that is joined to nothing."""
    own = kind_of(block)
    middle = assembly.spot(placed, own.middle)
    group = assembly.free_group(middle)
    assembly.loose.append(group)
    assembly.solid(group, mujoco.mjtGeom.mjGEOM_SPHERE, middle, (own.size[0] / 200,), own.mass)
    return group, group


def _mounted(assembly: Assembly, number: int, block: MachineBlock, placed: Placed) -> RigidGroup:
    return assembly.mount(
        number,
        assembly.carrier(block),
        assembly.metres(placed.at),
        force=assembly.physics.mount_force,
    )


PARTS: Mapping[Motion, Part] = {
    "rigid": rigid,
    "wheel": wheel,
    "spin": spin,
    "hinge": _jointed(HINGE, "Right", math.pi / 2),
    "steer": _jointed(HINGE, "Up", math.pi / 2),
    "swivel": _jointed(HINGE, "Front"),
    "servo": _jointed(HINGE, "Front"),
    "ball": _jointed(BALL, "Front"),
    "spring": spring,
    "piston": piston,
    "bowl": bowl,
    "loose": loose,
}
