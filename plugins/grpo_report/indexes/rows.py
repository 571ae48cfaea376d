"""Define the rows that the index of a run's rollouts returns, and the filters that choose them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Order = Literal["log", "reward", "tokens", "spread"]
"""What rows are ordered by: their place in the log; their reward or tokens, of a group the mean;
the spread, of a group its highest reward minus the lowest, of a rollout its advantage."""


@dataclass(frozen=True, slots=True)
class Range:
    """Choose the values from `low` to `high`, both included; None: there is no bound."""

    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Choose rollouts; None, an empty text and an empty range choose all.

    Of groups, those are chosen that have at least one rollout that all conditions choose.
    """

    steps: Range = Range()
    split: str | None = None
    environment: str | None = None
    task: int | None = None
    """The index in the task's key."""
    reward: Range = Range()
    """The total of the verdict; a rollout that could not be judged has none."""
    parts: Mapping[str, Range] = field(default_factory=dict)
    """The value of each of these parts of the reward."""
    tokens: Range = Range()
    passed: bool | None = None
    truncated: bool | None = None
    """Whether the token budget was used up."""
    duplicate: bool | None = None
    """Whether an earlier attempt of the group has the same completion."""
    error: bool | None = None
    """Whether it could not be judged."""
    text: str = ""
    """What the completion, with the environment's replies, or the prompt contains; the case of
    ASCII letters is ignored."""


ALL = Filter()
"""Chooses every rollout."""


@dataclass(frozen=True, slots=True)
class GroupRow:
    """Describe one group of rollouts."""

    id: int
    """Its place among the groups of the log, from 1."""
    step: int
    split: str
    number: int
    """Its place among the groups of its step and split, from 0."""
    environment: str
    task: int
    """The index in the task's key."""
    seed: int
    level: float
    draw: int
    rollouts: int
    scored: int
    passed: int
    truncated: int
    duplicates: int
    errors: int
    reward_mean: float | None
    """Of the scored rollouts; None if there are none."""
    reward_low: float | None
    reward_high: float | None
    tokens_mean: float
    dead: bool
    """All its advantages are 0; False for an evaluation, which has none."""


@dataclass(frozen=True, slots=True)
class RolloutRow:
    """Describe one rollout."""

    id: int
    """Its place among the rollouts of the log, from 1."""
    group: int
    """`GroupRow.id` of its group."""
    attempt: int
    step: int
    split: str
    environment: str
    task: int
    reward: float | None
    """None: it could not be judged."""
    passed: bool
    advantage: float | None
    """Of advantages by turn, their mean; None in an evaluation."""
    tokens: int
    finish: str
    duplicate: bool
    answer: str | None
    error: str | None
    parts: Mapping[str, float]
    """The value of each part of the reward."""

    @property
    def truncated(self) -> bool:
        """Return whether the token budget was used up."""
        return self.finish == "length"


@dataclass(frozen=True, slots=True)
class Count:
    """Count what a filter chooses."""

    groups: int
    rollouts: int


@dataclass(frozen=True, slots=True)
class Facets:
    """List what the filters can be set to."""

    steps: Range
    splits: tuple[str, ...]
    environments: tuple[str, ...]
    parts: tuple[str, ...]
    groups: int
    rollouts: int


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Describe one answer that got several rewards in one group."""

    group: int
    """`GroupRow.id` of the group."""
    step: int
    environment: str
    answer: str
    low: float
    high: float
    rollouts: int
    """How many scored rollouts of the group gave this answer."""


@dataclass(frozen=True, slots=True)
class Flip:
    """Describe a task that some rollout passed, and none at the next step that had it."""

    environment: str
    split: str
    task: int
    seed: int
    level: float
    passed_step: int
    failed_step: int
    passed_group: int
    failed_group: int
