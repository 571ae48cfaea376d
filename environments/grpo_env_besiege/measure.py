"""Runs a machine and scores it, twice where it matters: what pays only in coarse time steps is the solver's doing, not the machine's."""

from __future__ import annotations

from dataclasses import dataclass, replace

from grpo_env_besiege.levels import Level
from grpo_env_besiege.physics import DEFAULT, Physics
from grpo_env_besiege.score import Formula, Score, score, unfit
from grpo_env_besiege.simulation import simulate
from grpo_env_besiege.trajectory import Trajectory
from grpo_env_besiege.validity import Machine


@dataclass(frozen=True, slots=True)
class Measured:
    """score: the lower one of the two; trajectory: of the first run. disagreement: by which share of the higher score they differ."""

    score: Score
    trajectory: Trajectory
    disagreement: float = 0.0


def measure(
    machine: Machine, level: Level, *, formula: Formula = "paper", physics: Physics = DEFAULT
) -> Measured:
    """A plain synchronous function; what a machine does never makes it raise. A machine that cannot score is not run a second time."""
    if unfit(machine.tree, level):
        trajectory = Trajectory(machine.tree, ())
        return Measured(score(trajectory, level, formula), trajectory)
    trajectory = simulate(machine, level, physics=physics)
    first = score(trajectory, level, formula)
    if first.value <= 0:
        return Measured(first, trajectory)
    finer = replace(physics, step_seconds=physics.step_seconds / 2)
    second = score(simulate(machine, level, physics=finer), level, formula)
    lower = min(first, second, key=lambda one: one.value)
    return Measured(lower, trajectory, 1 - lower.value / max(first.value, second.value))
