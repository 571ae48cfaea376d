"""Machines as JSON construction trees, scored by a physics simulation.

The environments are `besiege/car`, `besiege/catapult` and `besiege/delivery`. Parts: file,
structure, spatial (1 or 0 each; weight 0, so that they are only logged) and performance: the score
of a valid machine's run, or 0.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from grpo_core import (
    ConfigError,
    Environment,
    Message,
    Reward,
    Rollout,
    Services,
    Task,
    TaskKey,
    Verdict,
    reaches,
)
from grpo_env_besiege.cold_start import answer_of, compact, draw_example
from grpo_env_besiege.feedback import feedback
from grpo_env_besiege.levels import LEVELS, Family
from grpo_env_besiege.measure import Measured, measure
from grpo_env_besiege.physics import DEFAULT, varied
from grpo_env_besiege.prompts import prompt
from grpo_env_besiege.score import Formula, unfit
from grpo_env_besiege.tree import MAX_BLOCKS, MachineFault, Stage
from grpo_env_besiege.validity import CheckedMachine, check

HIGHEST = 1000.0
"""Upper limit of the performance; no honest machine gets near it."""
STAGES: Mapping[str, tuple[Stage, ...]] = {
    "file": ("file",),
    "structure": ("structure",),
    "spatial": ("size", "spatial", "task"),
}
FEWEST: Mapping[Family, int] = {"car": 8, "catapult": 14, "delivery": 8}
PASSED: Mapping[Family, float] = {"car": 10.0, "catapult": 5.0}
WON = 1.0
"""Performance for reaching a level's goal; for only coming near it, at most half of that."""


@dataclass(frozen=True, slots=True)
class BesiegeConfig:
    """Settings of the environments."""

    prompt: Literal["full", "short"] = "full"
    """full: rules, block table and example. short: a single line, for tiny models that have been
    trained on answers."""
    formula: Formula = "paper"
    """paper: signed and guarded against exploits. code: as the published reward code means it."""
    scale: Literal["none", "log1p", "clip"] = "none"
    """How the performance becomes a reward. clip: divided by `most`, and at most 1."""
    most: float = 50.0
    """Performance that is worth 1 with scale=clip."""
    turns: int = 1
    """Above 1, the simulator answers and the policy may edit its machine; the last one counts."""
    threshold: float = 0.0
    """Performance from which a rollout passes. 0: the goal where the level has one, else 10 m for a
    car and 5 m² for a throw."""
    breakable: bool = False
    """Whether mounts and rods break under load."""
    budget: bool = True
    """Whether each task has its own limit to the number of blocks. Without it all tasks of a level
    have the same prompt, as in the paper, and held-out tasks only repeat it."""


@dataclass(frozen=True, slots=True)
class Order:
    """The machine that a task asks for."""

    level: str
    """Name of the level."""
    most: int
    """Largest number of blocks that the machine may have."""


class _Machines(Environment[Order]):
    """Base class of the three environments."""

    Config = BesiegeConfig
    family: ClassVar[Family]
    parts: ClassVar[Mapping[str, float]] = {
        "file": 0.0,
        "structure": 0.0,
        "spatial": 0.0,
        "performance": 1.0,
    }
    reward_range: tuple[float, float]  # type: ignore[misc]  # of each instance: the scales differ
    max_turns: int  # type: ignore[misc]
    timeout_seconds = 20.0
    max_new_tokens = 1168
    open_ended = True

    def __init__(self, config: Any = None, services: Services | None = None) -> None:
        given: BesiegeConfig = BesiegeConfig() if config is None else config
        if (
            given.turns < 1 or not 0 < given.most < math.inf or not 0 <= given.threshold < math.inf
        ):  # nan is in no range
            raise ConfigError(
                f"env.turns={given.turns} has to be at least 1, env.most={given.most:g} above 0 "
                f"and env.threshold={given.threshold:g} at least 0, both of them finite"
            )
        super().__init__(given, services)
        self.max_turns = given.turns
        self.reward_range = (0.0, self._scaled(HIGHEST))
        self._physics = replace(DEFAULT, breakable=given.breakable)
        self._levels = sorted(
            (level for level in LEVELS.values() if level.family == self.family),
            key=lambda level: level.difficulty,
        )

    def task(self, key: TaskKey) -> Task[Order]:
        """Return a task; held-out tasks have other limits to the number of blocks than training."""
        level = max(
            (level for level in self._levels if level.difficulty <= key.level),
            key=lambda level: level.difficulty,
        )
        numbers = [
            number
            for number in range(FEWEST[self.family], 31)
            if (number % 4 == 3) == (key.split == "eval")
        ]
        most = key.rng("blocks").choice(numbers) if self.config.budget else MAX_BLOCKS
        return Task(
            key,
            prompt(level, most=most, short=self.config.prompt == "short"),
            Order(level.name, most),
        )

    def verify(self, task: Task[Order], rollout: Rollout) -> Verdict:
        checked, measured = self._check_and_measure(task, rollout.text)
        rewards = {
            name: Reward(float(all(map(checked.passes, stages))), weight=0.0)
            for name, stages in STAGES.items()
        }
        if measured is None:
            why = "; ".join(map(str, checked.faults[:3]))
            return Verdict(
                {**rewards, "performance": Reward(0.0, note=why)}, metrics={"invalid": 1.0}
            )
        assert checked.machine is not None
        score = measured.score
        reached = min(score.value, HIGHEST)
        metrics = {
            "invalid": 0.0,
            "distance": score.distance,
            "height": score.height,
            "performance": reached,
            "blocks": float(len(checked.machine.tree)),
            "disagreement": measured.disagreement,
        }
        return Verdict(
            {
                **rewards,
                "performance": Reward(self._scaled(reached), note="; ".join(score.reasons[:3])),
            },
            passed=reaches(reached, self._least_performance(task)),
            answer=compact(checked.machine.tree),
            metrics=metrics,
        )

    async def reply(
        self, task: Task[Order], messages: Sequence[Message]
    ) -> Sequence[Message] | None:
        checked, measured = self._check_and_measure(task, messages[-1].content)
        return (Message("user", feedback(LEVELS[task.data.level], checked, measured)),)

    def audit(self, task: Task[Order], rollout: Rollout) -> float | None:
        """Return the machine's reward with friction and strengths that are up to 10 % different."""
        checked = _check(rollout.text, task.data)
        if not checked.valid or checked.machine is None:
            return 0.0
        world = varied(task.key.rng("world"), physics=self._physics)
        measured = measure(
            checked.machine, LEVELS[task.data.level], formula=self.config.formula, physics=world
        )
        return self._scaled(min(measured.score.value, HIGHEST))

    def reference(self, task: Task[Order]) -> str | None:
        """Draw a machine that passes, with its reasoning (without it for the short prompt).

        Returns:
            The answer, or None if none of the drawn machines passes.
        """
        level, least = LEVELS[task.data.level], self._least_performance(task)
        example = draw_example(
            task.key.rng("machine"), level, most=task.data.most, least=least, physics=self._physics
        )
        return None if example is None else answer_of(example, short=self.config.prompt == "short")

    def cheats(self, task: Task[Order]) -> Sequence[str]:
        return ("", "[]", '[{"id": "0", "order_id": 0, "parent": -1, "bp_id": -1}]', "drive 100 m")

    def render(self, task: Task[Order], rollout: Rollout, folder: Path) -> Sequence[Path]:
        """Write machine.png, and for a machine that can be built run.png and run.gif."""
        from grpo_env_besiege.drawing import draw

        checked, measured = self._check_and_measure(task, rollout.text)
        return (
            draw(checked.machine, None if measured is None else measured.trajectory, folder)
            if checked.machine is not None
            else ()
        )

    def fingerprint(self) -> str:
        sources = b"".join(file.read_bytes() for file in sorted(Path(__file__).parent.glob("*.py")))
        return hashlib.sha256(super().fingerprint().encode() + sources).hexdigest()[:16]

    def _check_and_measure(
        self, task: Task[Order], text: str
    ) -> tuple[CheckedMachine, Measured | None]:
        """Return the answer's machine, and its run if it can be built and the level allows it."""
        level = LEVELS[task.data.level]
        checked = _check(text, task.data)
        if not checked.valid or checked.machine is None:
            return checked, None
        return checked, measure(
            checked.machine, level, formula=self.config.formula, physics=self._physics
        )

    def _least_performance(self, task: Task[Order]) -> float:
        """Return the performance from which a rollout passes."""
        goal = LEVELS[task.data.level].goal
        return self.config.threshold or (PASSED[self.family] if goal is None else WON)

    def _scaled(self, value: float) -> float:
        if self.config.scale == "log1p":
            return math.log1p(value)
        return min(1.0, value / self.config.most) if self.config.scale == "clip" else value


class Car(_Machines):
    """A machine that drives forward, rewarded for each metre."""

    family = "car"


class Catapult(_Machines):
    """A machine that throws a boulder, rewarded for the distance times the height of its flight."""

    family = "catapult"


class Delivery(_Machines):
    """A machine that pushes a ball to a goal: rewarded 1 for that, up to 0.5 for coming nearer."""

    family = "delivery"


def _check(text: str, order: Order) -> CheckedMachine:
    """Read the machine of an answer, and check it, the rules of its task included."""
    checked = check(text)
    if checked.machine is None or checked.faults:
        return checked
    faults, blocks = unfit(checked.machine.tree, LEVELS[order.level]), len(checked.machine.tree)
    if blocks > order.most:
        faults = (
            *faults,
            MachineFault(
                "task", f"the machine has {blocks} blocks; at most {order.most} are asked for"
            ),
        )
    return CheckedMachine(checked.machine, faults)
