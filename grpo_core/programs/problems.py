"""Describe a problem that a program solves, and the settings of environments that ask for one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from grpo_core.programs.values import Case


@dataclass(frozen=True, slots=True)
class Problem:
    """Describes the function that the policy has to write."""

    statement: str
    """The description of the function, which is part of the prompt."""
    entry: str
    """The name of the function."""
    parameters: str
    """The parameters of the function, as between its parentheses."""
    source: str
    """A program that solves the problem."""
    examples: tuple[Case, ...]
    """Calls with their values, which are part of the prompt."""
    impossible: bool = False
    """The expected values are random, so that only a program that cheats can know them."""


MAX_MEMORY_MB = 2**20
MAX_CPU_SECONDS = 100.0
"""The upper limit of `cpu_seconds`.

A call may last 2.5 times as long. A call that never ends must get its reward of 0 before the
verdict's own time limit, which would make an error of it and leave the rollout out.
"""


@dataclass(frozen=True, slots=True)
class CodeConfig:
    """Holds the settings of a code environment."""

    difficulty: Literal[1, 2, 3, 4, 5, 6, 7, 8, 9, 10] | None = None
    """The difficulty of all problems; None derives it from the task's level: 0 is 1 and 1 is 10."""
    cases: int = 24
    """The number of held-out inputs for each verdict; every step draws new ones."""
    partial: Literal["above_constant", "seed", "none"] = "above_constant"
    """The reward of a program that passes some cases, but not all.

    "above_constant" gives 0.5 x the share that it passes beyond the best constant answer, "seed"
    gives 0.5 x the share that it passes, and "none" gives nothing.
    """
    cpu_seconds: float = 2.0
    """The CPU time of one call, whose wall time is limited to 2.5 times as much, at least 5 s."""
    memory_mb: int = 256
    """The memory of one call."""

    def __post_init__(self) -> None:
        for name in ("cases", "cpu_seconds", "memory_mb"):
            if not 0 < getattr(self, name) < math.inf:  # NaN is refused, too
                raise ValueError(
                    f"{name} is {getattr(self, name)}; it has to be above 0 and finite"
                )
        if self.memory_mb > MAX_MEMORY_MB:
            raise ValueError(f"memory_mb is {self.memory_mb}; it can be at most {MAX_MEMORY_MB}")
        if self.cpu_seconds > MAX_CPU_SECONDS:
            raise ValueError(
                f"cpu_seconds is {self.cpu_seconds}; at most {MAX_CPU_SECONDS:g} fit into the time "
                "that a verdict has"
            )
