"""Runs a machine in a level: it settles, gets power, and is recorded.

Every run gives the same result to the bit, in every process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np

from grpo_env_besiege.blocks import BOULDER
from grpo_env_besiege.breakage import break_mounts, held_bodies
from grpo_env_besiege.levels import Level, Place
from grpo_env_besiege.model import CompiledMachine, build
from grpo_env_besiege.physics import DEFAULT, Physics
from grpo_env_besiege.terrain import game
from grpo_env_besiege.trajectory import Flight, Frame, Pose, Trajectory
from grpo_env_besiege.validity import Machine

FRAME_SECONDS = 0.2
LOOKS = 5
"""How many times in each frame the boulder is recorded and the state is checked."""
FASTEST = 100.0
"""Speed in m/s, or radians per second, that no honest machine reaches."""
_LIFTED, _DOWN = 0.5, 0.15
GAME = np.array([[0.0, 0.0, 1.0], [-1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
"""Matrix that converts rows of places from MuJoCo's axes to the game's."""
GAME_TURN = np.array([[1.0, 0, 0, 0], [0, 0, 0, -1.0], [0, 1.0, 0, 0], [0, 0, -1.0, 0]])
"""Matrix that does the same for quaternions: in left-handed axes, a rotation goes the other way
about its axis."""


@dataclass(slots=True)
class _Watch:
    """The boulder's flight so far; it can land once it has been half a metre off the ground."""

    block: int
    radius: float
    top: float = 0.0
    lifted: bool = False
    landed: float | None = None
    at: Place = (0.0, 0.0, 0.0)
    centre: Place = (0.0, 0.0, 0.0)

    def look(self, seconds: float, boulder: Place, centre: Place) -> None:
        if self.landed is not None:
            return
        height = boulder[1] - self.radius
        self.top = max(self.top, boulder[1])
        self.at, self.centre = boulder, centre
        self.lifted = self.lifted or height > _LIFTED
        if self.lifted and height < _DOWN:
            self.landed = seconds


def simulate(machine: Machine, level: Level, *, physics: Physics = DEFAULT) -> Trajectory:
    """Run a machine; a run that blows up returns a trajectory with a fault, and does not raise."""
    before = mujoco.get_mju_user_warning()
    # The state is checked here; MuJoCo would write its warnings to a file in the working directory.
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        return _simulate(machine, level, physics=physics)
    finally:
        mujoco.set_mju_user_warning(before)


def _simulate(machine: Machine, level: Level, *, physics: Physics) -> Trajectory:
    model = build(machine, level, physics)
    data = mujoco.MjData(model.compiled)
    mujoco.mj_step(model.compiled, data, round(physics.settle_seconds / physics.step_seconds))
    if (reason := _fault_of(data)) is not None:
        return Trajectory(machine.tree, (), fault=f"it blew up before there was power: {reason}")
    data.ctrl[:] = model.power
    mujoco.mj_forward(model.compiled, data)
    return _run(machine, model, data, level=level, physics=physics)


def _run(
    machine: Machine, model: CompiledMachine, data: Any, *, level: Level, physics: Physics
) -> Trajectory:
    watch = _watch(machine)
    frames = [_frame(model, data, 0.0, ())]
    broken: tuple[int, ...] = ()
    steps = round(FRAME_SECONDS / LOOKS / physics.step_seconds)
    for number in range(1, round(level.seconds / FRAME_SECONDS) + 1):
        for look in range(LOOKS):
            if watch is not None:
                seconds = (number - 1 + look / LOOKS) * FRAME_SECONDS
                watch.look(seconds, _middle(model, data, watch.block), _centre(model, data))
            mujoco.mj_step(model.compiled, data, steps)
            if (reason := _fault_of(data)) is not None:
                return Trajectory(
                    machine.tree,
                    tuple(frames),
                    fault=f"it blew up after {number * FRAME_SECONDS:.1f} s: {reason}",
                )
        broken = break_mounts(model, data, broken)
        frames.append(_frame(model, data, round(number * FRAME_SECONDS, 6), broken))
    if watch is None:
        return Trajectory(machine.tree, tuple(frames))
    watch.look(level.seconds, _middle(model, data, watch.block), _centre(model, data))
    return Trajectory(
        machine.tree, tuple(frames), Flight(watch.top, watch.landed, watch.at, watch.centre)
    )


def _watch(machine: Machine) -> _Watch | None:
    """Return a recorder for the first boulder's flight, or None without a boulder."""
    for number, block in enumerate(machine.tree):
        if block.type == BOULDER:
            placed = machine.placed[number]
            return _Watch(number, radius=(placed.high[1] - placed.low[1]) / 200)
    return None


def _fault_of(data: Any) -> str | None:
    """Return what is wrong with the state, or None."""
    speed = float(np.abs(data.qvel).max())
    if not speed < FASTEST:
        return (
            f"something moves at {speed:.0f} m/s"
            if np.isfinite(speed)
            else "the state is not a number"
        )
    return None


def _frame(model: CompiledMachine, data: Any, seconds: float, broken: tuple[int, ...]) -> Frame:
    # After a step, the positions of bodies are still those before it.
    mujoco.mj_kinematics(model.compiled, data)
    mujoco.mj_comPos(model.compiled, data)
    turned = np.einsum("nij,nj->ni", data.xmat[model.bodies].reshape(-1, 3, 3), model.middles)
    places = (data.xpos[model.bodies] + turned) @ GAME
    turns = data.xquat[model.bodies] @ GAME_TURN
    return Frame(
        seconds=seconds,
        blocks=tuple(map(_pose, places.tolist(), turns.tolist())),
        centre=_centre(model, data),
        held=_held(model, data, broken),
        broken=broken,
        load=None if model.load is None else game(data.xpos[model.load]),
    )


def _pose(place: list[float], turn: list[float]) -> Pose:
    return Pose((place[0], place[1], place[2]), (turn[0], turn[1], turn[2], turn[3]))


def _middle(model: CompiledMachine, data: Any, block: int) -> Place:
    """Return the middle of a boulder, which is its body's origin."""
    return game(data.xpos[model.bodies[block]])


def _centre(model: CompiledMachine, data: Any) -> Place:
    """Return the centre of the machine's mass."""
    if not model.mounts:
        return game(data.subtree_com[model.root])
    return game(model.masses @ data.xipos[model.own] / model.masses.sum())


def _held(model: CompiledMachine, data: Any, broken: Sequence[int]) -> float:
    """Return the share of the machine's mass that still holds together with the root."""
    return (
        float(model.masses[held_bodies(model, data)].sum() / model.masses.sum()) if broken else 1.0
    )
