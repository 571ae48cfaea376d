"""The constants of the simulated world, in one place so that they can be calibrated and varied."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Physics:
    """Constants of the simulation, in SI units.

    With the defaults, the scores of the published examples lie in the published range, see
    `examples/benchmarks/calibrate_besiege.py`.

    Wheels and rotating blocks are speed servos with a limited torque. Bands pull with stiffness x
    length, up to a limit. Once there is power, a piston moves by its stroke and a winch pulls in by
    its stroke.
    """

    step_seconds: float = 0.01
    """Time step; it has to divide 0.04 s."""
    settle_seconds: float = 0.4
    gravity: float = 9.81
    ground_friction: float = 0.5
    wheel_friction: float = 1.0
    block_friction: float = 0.5
    wheel_speed: float = 7.6
    wheel_torque: float = 25.0
    spin_speed: float = 4.0
    spin_torque: float = 320.0
    band_stiffness: float = 20.0
    band_damping: float = 2.0
    band_force: float = 100.0
    winch_stroke: float = 2.0
    winch_stiffness: float = 100.0
    winch_force: float = 150.0
    piston_stroke: float = 1.1
    piston_stiffness: float = 2000.0
    piston_force: float = 300.0
    steer_stiffness: float = 300.0
    suspension_stiffness: float = 400.0
    suspension_damping: float = 20.0
    joint_damping: float = 0.2
    breakable: bool = False
    """Whether mounts of moving parts and wooden rods come off when the load exceeds their limit
    (`mount_force`, `rod_force`); it costs simulation time."""
    mount_force: float = 1500.0
    rod_force: float = 500.0


DEFAULT = Physics()


def varied(rng: random.Random, *, physics: Physics = DEFAULT, share: float = 0.1) -> Physics:
    """Return physics for audit scores that training never sees.

    Friction and strengths differ by up to `share` from those of `physics`.
    """
    names = (
        "ground_friction",
        "wheel_friction",
        "block_friction",
        "wheel_speed",
        "wheel_torque",
        "spin_torque",
        "band_stiffness",
    )
    return replace(
        physics,
        **{name: getattr(physics, name) * rng.uniform(1 - share, 1 + share) for name in names},
    )
