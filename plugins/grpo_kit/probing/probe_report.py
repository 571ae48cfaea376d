"""Hold what a probe tells of an environment and a model, level by level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The settings and declarations that a report depends on beside the attempts."""

    parts: Sequence[str]
    """The names of the reward parts."""
    budget: int
    """The most tokens of a turn."""
    open_ended: bool = False
    """Whether the environment has no best answer."""
    window: tuple[float, float] = (0.3, 0.7)
    """The lowest and the highest pass rate that suit training."""
    environment: str = "ENV"
    """How the command line names the environment, for advice."""
    model: str = "MODEL"
    """How it names the model."""
    has_levels: bool = False
    """Whether the environment has levels of difficulty."""
    max_error_rate: float = 0.2
    """The share of attempts that could not be judged above which a run stops."""


@dataclass(frozen=True, slots=True)
class Quantiles:
    """The median and the 99th percentile of some values."""

    median: float
    p99: float


@dataclass(frozen=True, slots=True)
class Bin:
    """The share of rewards from `low` up to `high`; the last bin includes `high`."""

    low: float
    high: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelReport:
    """The statistics and suggestions of one level; None where nothing was judged or timed."""

    level: float
    tasks: int
    attempts: int
    unscored: float
    """The share of attempts without a verdict."""
    clipped: float
    """The share of attempts that were cut off at the token budget."""
    pass_rate: float | None
    """The share of judged attempts that passed."""
    reward: float | None
    """The mean total reward of judged attempts."""
    pass_at: Mapping[int, float]
    """By k, the expected share of tasks that one of k attempts passes."""
    mixed_passed: float | None
    """The share of groups that hold both passes and failures."""
    mixed_reward: float | None
    """The share of groups whose attempts differ in total reward."""
    histogram: tuple[Bin, ...]
    """The distribution of total rewards."""
    parts: Mapping[str, float]
    """The mean value of each reward part, without its weight."""
    part_histograms: Mapping[str, tuple[Bin, ...]]
    """The distribution of the values of each reward part."""
    unparsed: float | None
    """The share of judged attempts in which the verifier saw no answer."""
    verify_seconds: Quantiles | None
    """Seconds of a verdict."""
    tokens: Quantiles | None
    """Tokens that the policy wrote in an attempt."""
    group_size: int | None
    """The suggested group size; None if none is large enough, or the level is untrainable."""
    max_new_tokens: int | None
    """The suggested token budget of a turn; None where the task fixes the number of tokens."""
    trainable: bool
    reason: str
    """Why the level is trainable or not, in one clause."""
    advice: str = ""
    """What may help where it is not."""


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """The reports of all probed levels, and the suggestions of the best trainable one."""

    levels: tuple[LevelReport, ...]
    trainable: bool
    """Whether any probed level is trainable."""
    reason: str
    """Why, in one sentence."""
    advice: str = ""
    """What may help where none is."""
    level: float | None = None
    """The trainable level whose pass rate suits training best; None if there is none."""
    group_size: int | None = None
    """The group size that is suggested at that level."""
    max_new_tokens: int | None = None
    """The token budget of a turn that is suggested at that level."""
    warnings: tuple[str, ...] = ()
    """What a run would warn of."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a dictionary that JSON can hold."""
        return asdict(self)
