"""Runs a machine and scores it, twice if it scores at all.

A score that appears only in coarse time steps comes from the solver and not from the machine.
"""

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
    """The result of running a machine."""

    score: Score
    """The lower one of the two runs' scores."""
    trajectory: Trajectory
    """Trajectory of the first run."""
    disagreement: float = 0.0
    """Difference between the two scores, as a share of the higher one."""


def measure(
    machine: Machine, level: Level, *, formula: Formula = "paper", physics: Physics = DEFAULT
) -> Measured:
    """Run a machine in a level and score it; nothing that a machine does raises an exception.

    A machine without a score is not run a second time.
    """
    if unfit(machine.tree, level):
        trajectory = Trajectory(machine.tree, ())
        return Measured(score(trajectory, level, formula), trajectory)
    trajectory = simulate(machine, level, physics=physics)
    first = score(trajectory, level, formula)
    if first.value <= 0:
        return Measured(first, trajectory)
    finer = replace(physics, step_seconds=physics.step_seconds / 2)
    second = score(simulate(machine, level, physics=finer), level, formula)
    lower = min(first, second, key=lambda result: result.value)
    return Measured(lower, trajectory, 1 - lower.value / max(first.value, second.value))
