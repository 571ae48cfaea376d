"""The model while it is built: rigid groups of blocks, what moves between them, and what pulls on them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import mujoco

from grpo_env_besiege.blocks import AXES, BLOCKS, BlockType, Facing, Vector
from grpo_env_besiege.geometry import Placed, add, ground_shift, turn
from grpo_env_besiege.levels import Place
from grpo_env_besiege.physics import Physics
from grpo_env_besiege.terrain import world
from grpo_env_besiege.tree import Block
from grpo_env_besiege.validity import Machine

SHRINK = 0.98
"""Blocks that touch in the tree do not touch in the simulation, where each contact would cost time and energy."""
_STANDS = 1  # cm above the ground; the original drops its machines from 50


@dataclass(frozen=True, slots=True)
class Group:
    """Blocks that move as one: a body whose own origin stands at `origin` before anything moves. on: what a mount is held to."""

    body: Any
    name: str
    origin: Place
    on: Group | None = None


@dataclass(frozen=True, slots=True)
class Joint:
    """How a part may move against what carries it. kind: of MuJoCo's joints."""

    kind: Any
    axis: Place = (1.0, 0.0, 0.0)
    limits: tuple[float, float] | None = None
    stiffness: float = 0.0
    damping: float = 0.0


@dataclass(frozen=True, slots=True)
class Mount:
    """A link that may break: the equality's name, the block that comes off, and the force it stands."""

    name: str
    block: int
    force: float


@dataclass(slots=True)
class Assembly:
    """bases, tips: of each block, the group that carries it and the one that moves on. loose: groups that are not joined to the machine.
    power: what each motor is told once there is power."""

    spec: Any
    machine: Machine
    physics: Physics
    shift: tuple[float, float, float] = field(init=False)
    groups: list[Group] = field(default_factory=list)
    bases: list[Group] = field(default_factory=list)
    tips: list[Group] = field(default_factory=list)
    loose: list[Group] = field(default_factory=list)
    power: list[float] = field(default_factory=list)
    mounts: list[Mount] = field(default_factory=list)
    names: int = 0

    def __post_init__(self) -> None:
        self.shift = ground_shift(self.machine.placed, clearance=_STANDS)

    def name(self, kind: str) -> str:
        self.names += 1
        return f"{kind}{self.names}"

    def metres(self, at: Vector) -> Place:
        """A place of the machine in the world of the simulation."""
        x, y, z = ((value + shift) / 100 for value, shift in zip(at, self.shift, strict=True))
        return world((x, y, z))

    def carrier(self, block: Block, which: int = 0) -> Group:
        """The group that a block is attached to. A rotating block's far end stands still, its sides turn."""
        end = block.ends[which]
        stands = BLOCKS[self.machine.tree[end.parent].type].motion == "spin" and end.point == 0
        return (self.bases if stands else self.tips)[end.parent]

    def free_group(self, at: Place, *, on: Group | None = None) -> Group:
        """A body of its own, not attached to anything."""
        name = self.name("body")
        group = Group(self.spec.worldbody.add_body(name=name, pos=at), name, at, on)
        group.body.add_freejoint()
        self.groups.append(group)
        return group

    def moving_group(self, carrier: Group, at: Place, joint: Joint) -> tuple[Group, str]:
        """A body on a joint, and the joint's name. It does not collide with what carries it."""
        name = self.name("body")
        group = Group(carrier.body.add_body(name=name, pos=apart(at, carrier.origin)), name, at)
        name = self.name("joint")
        made = group.body.add_joint(name=name, type=joint.kind, axis=joint.axis, armature=0.01)
        if carrier.on is not None:
            self.spec.add_exclude(bodyname1=carrier.on.name, bodyname2=group.name)
        made.damping = [joint.damping, 0, 0]
        made.stiffness = [joint.stiffness, 0, 0]
        if joint.limits is not None:
            made.limited, made.range = 1, joint.limits
        self.groups.append(group)
        return group, name

    def mount(self, number: int, carrier: Group, at: Place, *, force: float) -> Group:
        """The carrier itself, or, where things can break, a body that is held to it by a link of limited strength."""
        if not self.physics.breakable:
            return carrier
        group = self.free_group(at, on=carrier)
        group.body.add_geom(
            type=mujoco.mjtGeom.mjGEOM_SPHERE, size=[0.1, 0, 0], mass=0.1, contype=0, conaffinity=0
        )
        self.spec.add_exclude(bodyname1=carrier.name, bodyname2=group.name)
        self.mounts.append(Mount(self.weld(carrier, group), number, force))
        return group

    def weld(self, a: Group, b: Group) -> str:
        name = self.name("weld")
        link = self.spec.add_equality(
            name=name,
            type=mujoco.mjtEq.mjEQ_WELD,
            objtype=mujoco.mjtObj.mjOBJ_BODY,
            name1=a.name,
            name2=b.name,
        )
        # As stiff as can be: a mount is light, and what hangs on it is not.
        link.solimp = [0.99, 0.9999, 0.001, 0.5, 2]
        link.data = [0.0] * 10 + [1.0] + [0.0] * (len(link.data) - 11)
        return name

    def solid(
        self, group: Group, kind: Any, at: Place, size: tuple[float, ...], mass: float, **more: Any
    ) -> Any:
        """A geom of a group, given where it is in the world."""
        friction = [self.physics.block_friction, 0.005, 0.0001]
        return group.body.add_geom(
            type=kind,
            pos=apart(at, group.origin),
            size=[*size, 0, 0][:3],
            mass=mass,
            friction=friction,
            **more,
        )

    def box(self, group: Group, placed: Placed, middle: Vector, size: Vector, mass: float) -> None:
        """A box given in a block's own axes."""
        x, y, z = (abs(length) * SHRINK / 200 for length in turn(size, placed.facing))
        self.solid(group, mujoco.mjtGeom.mjGEOM_BOX, self.spot(placed, middle), (z, x, y), mass)

    def spot(self, placed: Placed, own: Vector) -> Place:
        """A place in a block's own axes, in the world."""
        return self.metres(add(placed.at, turn(own, placed.facing)))

    def motor(
        self,
        joint: str,
        *,
        at_power: float,
        force: float,
        speed_gain: float = 0.0,
        stiffness: float = 0.0,
    ) -> None:
        """A servo that holds still (a speed of 0, or its place) until there is power."""
        motor = self.spec.add_actuator(
            name=self.name("motor"),
            target=joint,
            trntype=mujoco.mjtTrn.mjTRN_JOINT,
            forcelimited=1,
            forcerange=[-force, force],
        )
        if stiffness:
            motor.set_to_position(kp=stiffness, kv=speed_gain)
        else:
            motor.set_to_velocity(kv=speed_gain)
        self.power.append(at_power)


def apart(a: Place, b: Place) -> Place:
    return (a[0] - b[0], a[1] - b[1], a[2] - b[2])


def direction(facing: Facing) -> Place:
    x, y, z = AXES[facing]
    return world((float(x), float(y), float(z)))


def kind_of(block: Block) -> BlockType:
    return BLOCKS[block.type]
