"""Adds a level's ground, obstacles and load to a model."""

from __future__ import annotations

import math
from typing import Any

import mujoco

from grpo_env_besiege.levels import Bar, Level, Place, Roller
from grpo_env_besiege.physics import Physics

LOAD = "load"
THIN = 0.3
"""Density of the air in levels with wind, in kg/m3: at the Earth's 1.2, the wind would blow away a
boulder that has the game's mass."""


def world(place: Place) -> Place:
    """Convert from the game's axes to MuJoCo's.

    The game's are x right, y up, z forward (left-handed); MuJoCo's are x forward, y left, z up.
    """
    x, y, z = place
    return (z, -x, y)


def game(place: Any) -> Place:
    """Convert from MuJoCo's axes to the game's."""
    return (0.0 - float(place[1]), float(place[2]), float(place[0]))


def add_terrain(spec: Any, level: Level, physics: Physics) -> None:
    """Add the level's ground, obstacles, wind and load to the model's specification."""
    _options(spec, level, physics)
    friction = [physics.ground_friction, 0.005, 0.0001]
    spec.worldbody.add_geom(type=mujoco.mjtGeom.mjGEOM_PLANE, size=[0, 0, 1], friction=friction)
    for obstacle in level.obstacles:
        geom = _bar(spec, obstacle) if isinstance(obstacle, Bar) else _roller(spec, obstacle)
        geom.friction = friction
        if isinstance(obstacle, Bar) and obstacle.slippery:
            # MuJoCo takes the greater friction of two surfaces, unless one of them has priority.
            geom.priority, geom.condim = 1, 1
    if level.load is not None:
        radius, mass, at = level.load
        body = spec.worldbody.add_body(name=LOAD, pos=world(at))
        body.add_freejoint()
        body.add_geom(
            type=mujoco.mjtGeom.mjGEOM_SPHERE, size=[radius, 0, 0], mass=mass, friction=friction
        )


def _options(spec: Any, level: Level, physics: Physics) -> None:
    spec.compiler.degree = False
    option = spec.option
    option.timestep, option.gravity = physics.step_seconds, [0, 0, -physics.gravity]
    option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    # A state that blew up stays as it is, so that it is detected: a reset would start the machine
    # again in the middle of its run.
    option.disableflags = mujoco.mjtDisableBit.mjDSBL_AUTORESET
    if any(level.wind):
        option.wind, option.density = world(level.wind), THIN


def _bar(spec: Any, bar: Bar) -> Any:
    x, y, z = bar.size
    tilt, turn = math.radians(-bar.tilt) / 2, math.radians(-bar.turn) / 2
    quat = [
        math.cos(turn) * math.cos(tilt),
        -math.sin(turn) * math.sin(tilt),
        math.cos(turn) * math.sin(tilt),
        math.sin(turn) * math.cos(tilt),
    ]
    return spec.worldbody.add_geom(
        type=mujoco.mjtGeom.mjGEOM_BOX, pos=world(bar.middle), size=[z / 2, x / 2, y / 2], quat=quat
    )


def _roller(spec: Any, roller: Roller) -> Any:
    x, y, z = roller.middle
    ends = [*world((x - roller.length / 2, y, z)), *world((x + roller.length / 2, y, z))]
    return spec.worldbody.add_geom(
        type=mujoco.mjtGeom.mjGEOM_CYLINDER, fromto=ends, size=[roller.radius, 0, 0]
    )
