"""Compute what each strategy earns, and tell which of them are shortcuts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev
from typing import Any

from grpo_core.figures.statistics import wilson_interval
from grpo_kit.dialogues.scripts import split_turns
from grpo_kit.shortcuts.strategy import Candidate, Kind

_CONFIDENCE = 0.95
"""Of the intervals that are shown."""
_TOLERANCE = 1e-9
_DOUBT = 0.05
"""The chance that any of all strategies that were tried is called a shortcut by luck alone."""
_CLEARLY = 0.1
"""How much more often than an even guess a shortcut passes, as a share of tasks."""
_MOSTLY = 0.5
"""The share of what references earn at which an answer that seldom passes is a shortcut, too."""


@dataclass(frozen=True, slots=True)
class TriedOutcome:
    """Holds the result of one attempt."""

    total: float
    passed: bool
    error: str = ""
    """Why there is no verdict; "" if there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """Holds the results of a strategy on the tasks on which it was judged."""

    name: str
    kind: Kind
    tasks: int
    """Tasks with a verdict, and those that a strategy does not answer, which count as the floor.

    Where a mistake cannot be made, the task does not count.
    """
    answered: int
    """Tasks with a verdict."""
    passes: int
    reward: float
    """The mean reward over `tasks`."""
    spread: float
    """The standard error of that mean."""
    errors: int
    """Attempts without a verdict, which are left out."""
    example: tuple[str, ...]
    """The turns of an answer, if possible of one that passed."""
    declared: bool = False
    """Whether the environment names it as an answer that must not pass."""

    @property
    def pass_rate(self) -> float:
        """Return the share of tasks that it passes."""
        return self.passes / self.tasks if self.tasks else 0.0

    def earns_above(self, floor: float) -> bool:
        """Return whether it passes a task, or earns more than the floor."""
        return self.passes > 0 or self.reward > floor + _TOLERANCE

    @property
    def interval(self) -> tuple[float, float]:
        """Return the 95 % interval of the pass rate, for this strategy alone."""
        return wilson_interval(self.pass_rate, self.tasks, confidence=_CONFIDENCE)


def tried_of(candidate: Candidate, outcomes: Sequence[TriedOutcome | None], floor: float) -> Tried:
    """Return what a candidate got.

    Args:
        candidate: Its answers.
        outcomes: What it got on each task so far; None where it has no answer.
        floor: The reward of no answer.
    """
    counted = [o for o in outcomes if o is not None or candidate.kind != "mistake"]
    scored = [outcome for outcome in counted if outcome is None or not outcome.error]
    rewards = [floor if outcome is None else outcome.total for outcome in scored]
    passed = [
        place
        for place, outcome in enumerate(outcomes)
        if outcome is not None and not outcome.error and outcome.passed
    ]
    known = [place for place, answer in enumerate(candidate.answers) if answer is not None]
    place = next(iter([*passed, *known]), 0)
    return Tried(
        name=candidate.name,
        kind=candidate.kind,
        tasks=len(scored),
        answered=sum(outcome is not None for outcome in scored),
        passes=len(passed),
        reward=fmean(rewards) if rewards else floor,
        spread=stdev(rewards) / math.sqrt(len(rewards)) if len(rewards) > 1 else 0.0,
        errors=len(counted) - len(scored),
        example=split_turns((candidate.answers[place] or "") if candidate.answers else ""),
        declared=candidate.declared,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelHunt:
    """Holds the strategies that were tried at one level, with their results."""

    level: float
    tasks: int
    """Tasks on which the best strategies were judged."""
    screened: int
    """Tasks on which all were judged; the best of them then on `tasks`."""
    learned: int
    """References of other tasks from which forms and frequent answers were learned."""
    composed: int
    """Strategies that were composed, each with answers of its own."""
    mistaken: int
    """Mistakes that were made in references."""
    floor: float
    even_chance: float
    """What a guess among all answers seen passes, each as often; one half if none were seen."""
    open_ended: bool
    """Whether the environment has no best answer, so that only rewards count."""
    reference: Tried | None
    """What the references get on these tasks; None if there are none."""
    strategies: tuple[Tried, ...]
    """The best strategies, the highest mean reward first."""
    mistakes: tuple[Tried, ...]
    """The best paid mistakes."""
    attempts: int
    errors: int
    """Attempts without a verdict."""
    error: str = ""
    """Why the first of them has none."""
    notes: tuple[str, ...] = ()
    """What could not be tried, and why."""
    stopped: bool = False
    """Whether it was stopped before all was judged."""

    @property
    def shortcuts(self) -> tuple[Tried, ...]:
        """Return the strategies that are shortcuts."""
        return tuple(tried for tried in self.strategies if self.is_shortcut(tried))

    @property
    def passing_mistakes(self) -> tuple[Tried, ...]:
        """Return the mistakes that pass: declared ones at all, others clearly often."""
        return tuple(
            tried
            for tried in self.mistakes
            if (tried.declared and tried.passes) or self.is_shortcut(tried)
        )

    @property
    def found(self) -> bool:
        """Return whether there is a shortcut, or a declared mistake that passes."""
        return bool(self.shortcuts) or any(tried.declared for tried in self.passing_mistakes)

    def is_shortcut(self, tried: Tried) -> bool:
        """Return whether something passes clearly more tasks than an even guess, or pays as much.

        The best of many strategies is partly lucky, so the interval allows for all that were tried.
        """
        doubt = _DOUBT / max(1, self.composed + self.mistaken)
        if not self.open_ended:
            low, _ = wilson_interval(tried.pass_rate, tried.tasks, confidence=1 - doubt)
            more = tried.pass_rate - self.even_chance
            if low > self.even_chance and more >= _CLEARLY:
                return True
        low_reward = tried.reward - NormalDist().inv_cdf(1 - doubt / 2) * tried.spread
        return tried.tasks > 1 and self.share_of_reference(low_reward) > max(
            _MOSTLY, self.even_chance
        )

    def share_of_reference(self, reward: float) -> float:
        """Return a reward above the floor as a share of what references earn; 0 if not known."""
        best = self.reference.reward - self.floor if self.reference else 0.0
        return (reward - self.floor) / best if best > 0 else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return all of it as a dictionary that JSON can hold."""
        return {
            "level": self.level,
            "tasks": self.tasks,
            "screened": self.screened,
            "learned": self.learned,
            "composed": self.composed,
            "mistaken": self.mistaken,
            "floor": self.floor,
            "even_chance": self.even_chance,
            "reference": None if self.reference is None else _to_json(self.reference),
            "strategies": [self._judged(tried) for tried in self.strategies],
            "mistakes": [self._judged(tried) for tried in self.mistakes],
            "attempts": self.attempts,
            "errors": self.errors,
            "error": self.error,
            "notes": list(self.notes),
            "stopped": self.stopped,
        }

    def _judged(self, tried: Tried) -> dict[str, Any]:
        paid = tried in self.shortcuts or tried in self.passing_mistakes
        return {**_to_json(tried), "shortcut": paid}


def _to_json(tried: Tried) -> dict[str, Any]:
    return {
        "name": tried.name,
        "kind": tried.kind,
        "declared": tried.declared,
        "tasks": tried.tasks,
        "answered": tried.answered,
        "passes": tried.passes,
        "pass_rate": tried.pass_rate,
        "interval": list(tried.interval),
        "reward": tried.reward,
        "errors": tried.errors,
        "example": list(tried.example),
    }
