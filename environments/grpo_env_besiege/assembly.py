"""The simulation's model while it is built: rigid groups of blocks, joints, links and motors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import mujoco

from grpo_env_besiege.blocks import AXES, BLOCKS, BlockType, Facing, Vector
from grpo_env_besiege.geometry import Placed, add, ground_shift, turn
from grpo_env_besiege.levels import Place
from grpo_env_besiege.physics import Physics
from grpo_env_besiege.terrain import world
from grpo_env_besiege.tree import MachineBlock
from grpo_env_besiege.validity import Machine

SHRINK = 0.98
"""Factor on the size of blocks: those that touch in the tree must not touch in the simulation,
where each contact would cost time and energy."""
_STANDS = 1  # cm above the ground; the original drops its machines from 50


@dataclass(frozen=True, slots=True)
class RigidGroup:
    """Blocks that move as one body of the simulation."""

    body: Any
    """The body in MuJoCo's specification."""
    name: str
    """The body's name."""
    origin: Place
    """Where the body's origin is before anything moves."""
    on: RigidGroup | None = None
    """The group that a mount is held to; None for other groups."""


@dataclass(frozen=True, slots=True)
class Joint:
    """Describe how a part may move relative to the group that carries it."""

    kind: Any
    """Type of joint, one of MuJoCo's."""
    axis: Place = (1.0, 0.0, 0.0)
    limits: tuple[float, float] | None = None
    stiffness: float = 0.0
    damping: float = 0.0


@dataclass(frozen=True, slots=True)
class Mount:
    """A link that may break."""

    name: str
    """Name of the equality constraint."""
    block: int
    """Number of the block that comes off."""
    force: float
    """Force in newtons above which the link breaks."""


@dataclass(slots=True)
class Assembly:
    """A machine's model while it is built, with methods that add parts to it."""

    spec: Any
    """MuJoCo's specification of the model."""
    machine: Machine
    """The machine that is built."""
    physics: Physics
    """The constants of the simulated world."""
    shift: tuple[float, float, float] = field(init=False)
    """From places in the machine to places in the world, in cm."""
    groups: list[RigidGroup] = field(default_factory=list)
    """All groups."""
    bases: list[RigidGroup] = field(default_factory=list)
    """For each block, the group that carries it."""
    tips: list[RigidGroup] = field(default_factory=list)
    """For each block, the group that moves with its far side, to which others attach."""
    loose: list[RigidGroup] = field(default_factory=list)
    """Groups that are not joined to the machine."""
    power: list[float] = field(default_factory=list)
    """The target of each motor once there is power."""
    mounts: list[Mount] = field(default_factory=list)
    """The links that may break."""
    names: int = 0
    """Number of names given so far."""

    def __post_init__(self) -> None:
        self.shift = ground_shift(self.machine.placed, clearance=_STANDS)

    def name(self, kind: str) -> str:
        """Return a new name that begins with `kind`."""
        self.names += 1
        return f"{kind}{self.names}"

    def metres(self, at: Vector) -> Place:
        """Convert a place in the machine (cm) to one in the simulated world (m)."""
        x, y, z = ((value + shift) / 100 for value, shift in zip(at, self.shift, strict=True))
        return world((x, y, z))

    def carrier(self, block: MachineBlock, which: int = 0) -> RigidGroup:
        """Return the group that the block's end number `which` is attached to.

        The far end of a rotating block stands still; its sides turn.
        """
        end = block.ends[which]
        stands = BLOCKS[self.machine.tree[end.parent].type].motion == "spin" and end.point == 0
        return (self.bases if stands else self.tips)[end.parent]

    def free_group(self, at: Place, *, on: RigidGroup | None = None) -> RigidGroup:
        """Add a group that is not attached to anything."""
        name = self.name("body")
        group = RigidGroup(self.spec.worldbody.add_body(name=name, pos=at), name, at, on)
        group.body.add_freejoint()
        self.groups.append(group)
        return group

    def moving_group(self, carrier: RigidGroup, at: Place, joint: Joint) -> tuple[RigidGroup, str]:
        """Add a group on a joint, and return it with the joint's name.

        It does not collide with the group that carries it.
        """
        name = self.name("body")
        group = RigidGroup(
            carrier.body.add_body(name=name, pos=apart(at, carrier.origin)), name, at
        )
        name = self.name("joint")
        body_joint = group.body.add_joint(
            name=name, type=joint.kind, axis=joint.axis, armature=0.01
        )
        if carrier.on is not None:
            self.spec.add_exclude(bodyname1=carrier.on.name, bodyname2=group.name)
        body_joint.damping = [joint.damping, 0, 0]
        body_joint.stiffness = [joint.stiffness, 0, 0]
        if joint.limits is not None:
            body_joint.limited, body_joint.range = 1, joint.limits
        self.groups.append(group)
        return group, name

    def mount(self, number: int, carrier: RigidGroup, at: Place, *, force: float) -> RigidGroup:
        """Return the group on which block `number` is mounted.

        It is the carrier itself, or, if mounts can break, a new group that a link of limited
        strength holds to the carrier.
        """
        if not self.physics.breakable:
            return carrier
        group = self.free_group(at, on=carrier)
        group.body.add_geom(
            type=mujoco.mjtGeom.mjGEOM_SPHERE, size=[0.1, 0, 0], mass=0.1, contype=0, conaffinity=0
        )
        self.spec.add_exclude(bodyname1=carrier.name, bodyname2=group.name)
        self.mounts.append(Mount(self.weld(carrier, group), number, force))
        return group

    def weld(self, a: RigidGroup, b: RigidGroup) -> str:
        """Join two groups rigidly, and return the link's name."""
        name = self.name("weld")
        link = self.spec.add_equality(
            name=name,
            type=mujoco.mjtEq.mjEQ_WELD,
            objtype=mujoco.mjtObj.mjOBJ_BODY,
            name1=a.name,
            name2=b.name,
        )
        # As stiff as possible: a mount is light, and the blocks that hang on it are not.
        link.solimp = [0.99, 0.9999, 0.001, 0.5, 2]
        link.data = [0.0] * 10 + [1.0] + [0.0] * (len(link.data) - 11)
        return name

    def solid(
        self,
        group: RigidGroup,
        kind: Any,
        at: Place,
        size: tuple[float, ...],
        mass: float,
        **more: Any,
    ) -> Any:
        """Add a geom to a group, at a place given in the world's axes."""
        friction = [self.physics.block_friction, 0.005, 0.0001]
        return group.body.add_geom(
            type=kind,
            pos=apart(at, group.origin),
            size=[*size, 0, 0][:3],
            mass=mass,
            friction=friction,
            **more,
        )

    def box(
        self, group: RigidGroup, placed: Placed, middle: Vector, size: Vector, mass: float
    ) -> None:
        """Add a box to a group, with middle and size (cm) given in the block's own axes."""
        x, y, z = (abs(length) * SHRINK / 200 for length in turn(size, placed.facing))
        self.solid(group, mujoco.mjtGeom.mjGEOM_BOX, self.spot(placed, middle), (z, x, y), mass)

    def spot(self, placed: Placed, own: Vector) -> Place:
        """Convert a place in a block's own axes (cm) to one in the world (m)."""
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
        """Add a servo to a joint; until there is power, it holds speed 0 or its position."""
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
    """Return the vector from `b` to `a`."""
    return (a[0] - b[0], a[1] - b[1], a[2] - b[2])


def direction(facing: Facing) -> Place:
    """Return a facing as a unit vector in the simulation's axes."""
    x, y, z = AXES[facing]
    return world((float(x), float(y), float(z)))


def kind_of(block: MachineBlock) -> BlockType:
    """Return the type of a block."""
    return BLOCKS[block.type]
