"""Environments with honest verdicts that look odd."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from bases_f2_fresh9 import Bench, BenchSeats, RaffleOdds, meets
from bases_f_fresh9 import chat, drawn
from catalogue import honest

from grpo_core import Environment, Reward, Rollout, Task, TaskKey, Verdict
from grpo_core.extract import parse_decimal


@honest(
    "Rewards go from -1 to 1 and the floor is -1, as declared: a wrong percentage costs by how "
    "far it is off, and only the exact one passes."
)
class RaffleWithStakes(RaffleOdds):
    """Pays and takes by the nats that a percentage loses."""

    reward_range: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    floor: ClassVar[float] = -1.0

    def score(self, true: int, said: int | None) -> float:
        if said is None:
            return -1.0
        return 1.0 if said == true else max(-1.0, 0.9 - 2 * self.sharpness * self.lost(true, said))


@honest(
    "One part has a negative weight: what seats not every guest exactly once costs 0.2, which is "
    "the floor and the lower end of the range, so silence gets no more than junk."
)
class BenchWithAFine(BenchSeats):
    """Pays 1 for seats that meet all wishes, and takes 0.2 for a reply that seats nobody."""

    parts: ClassVar[Mapping[str, float]] = {"right": 1.0, "unseated": -0.2}
    reward_range: ClassVar[tuple[float, float]] = (-0.2, 1.0)
    floor: ClassVar[float] = -0.2

    def verify(self, task: Task[Bench], rollout: Rollout) -> Verdict:
        seats = self.seats(rollout.text, task.data.guests)
        right = seats is not None and all(meets(seats, wish) for wish in task.data.wishes)
        rewards = {"right": Reward(right), "unseated": Reward(seats is None)}
        return Verdict(rewards, passed=right, answer=rollout.text[:80])


@dataclass(frozen=True, slots=True)
class Ladder:
    """Holds a ladder against a wall, in centimetres."""

    owner: str
    length: int
    foot: int

    @property
    def metres(self) -> float:
        """Return how high it reaches."""
        return math.sqrt(self.length**2 - self.foot**2) / 100


OWNERS = ("painter", "roofer", "sweep", "glazier", "gardener", "mason", "thatcher", "electrician")


@honest(
    "A height may be off by one percent, as the prompt and `tolerance` say, and passes though it "
    "earns only 0.8 of the reward; within 0.2 percent it earns all of it."
)
class LadderNearlyThere(Environment[Ladder]):
    """Asks how high a ladder reaches, in metres."""

    max_new_tokens = 12
    tolerance: ClassVar[float] = 0.01

    def ladder(self, rng: random.Random, key: TaskKey) -> Ladder:
        """Return a ladder; the higher the level, the odder its measures."""
        step = 25 if key.level < 0.5 else 1
        length = rng.randint(300 // step, 1200 // step) * step
        foot = rng.randint(75 // step, length // 2 // step) * step
        return Ladder(rng.choice(OWNERS), length, foot)

    def question(self, ladder: Ladder) -> str:
        """Return the question."""
        return (
            f"The ladder of the {ladder.owner} is {ladder.length} cm long, and its foot stands "
            f"{ladder.foot} cm from the wall. How high does it reach, in metres? Reply with a "
            "number with a decimal point, right to one percent."
        )

    def task(self, key: TaskKey) -> Task[Ladder]:
        ladder = drawn(key, lambda rng: self.ladder(rng, key), self.question)
        return Task(key, chat(self.question(ladder)), ladder)

    def verify(self, task: Task[Ladder], rollout: Rollout) -> Verdict:
        said = parse_decimal(rollout.text[:60], max_digits=12) if len(rollout.text) < 60 else None
        right = task.data.metres
        error = math.inf if said is None else abs(float(said) - right) / max(1.0, right)
        score = 1.0 if error <= 0.002 else 0.8 if error <= 0.01 else 0.0
        return Verdict({"reward": Reward(score)}, passed=score > 0)

    def reference(self, task: Task[Ladder]) -> str:
        return f"{task.data.metres:.3f}"
