"""Compute what two evaluations of the same tasks differ by: the gains of a run."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TypeVar

from grpo_core.figures.statistics import t_quantile
from grpo_core.protocol.ties import difference
from grpo_core.protocol.types import TaskKey, Verdict

Key = TypeVar("Key", bound=Hashable)
Scores = dict[TaskKey, dict[str, float]]
"""By task, the compared values by name: reward, pass_rate, audit."""


@dataclass(frozen=True, slots=True)
class Gain:
    """A paired difference of means with its 95 % interval (Student's t over tasks)."""

    before: float
    """The mean before."""
    after: float
    """The mean after."""
    low: float
    """The lower end of the interval of the difference."""
    high: float
    """The upper end of the interval of the difference."""
    tasks: int
    """The number of tasks scored in both."""

    @property
    def mean(self) -> float:
        """Return the difference of the means."""
        return self.after - self.before


def paired_gain(before: Mapping[Key, float], after: Mapping[Key, float]) -> Gain | None:
    """Return the gain over the tasks scored in both, or None if there are fewer than two."""
    keys = [key for key in before if key in after]
    if len(keys) < 2:
        return None
    differences = [difference(before[key], after[key]) for key in keys]
    margin = t_quantile(0.975, len(keys) - 1) * stdev(differences) / math.sqrt(len(keys))
    mean = fmean(differences)
    return Gain(
        fmean(before[key] for key in keys),
        fmean(after[key] for key in keys),
        mean - margin,
        mean + margin,
        len(keys),
    )


def score(verdict: Verdict) -> dict[str, float]:
    """Return the values that two evaluations are compared by: reward, pass rate and any audit."""
    return {
        "reward": verdict.total,
        "pass_rate": float(verdict.passed),
        **{name: value for name, value in verdict.metrics.items() if name == "audit"},
    }


def gains_of(before: Scores, after: Scores, names: Sequence[str]) -> dict[str, Gain]:
    """Return the gains by the name of the compared value.

    With several environments there are gains for each, under "ENVIRONMENT VALUE".
    """
    gains = {}
    for name in names:
        for column in ("reward", "pass_rate", "audit"):
            gain = paired_gain(_column(before, name, column), _column(after, name, column))
            if gain is not None:
                gains[column if len(names) == 1 else f"{name} {column}"] = gain
    return gains


def against_audit(gains: Mapping[str, Gain]) -> Iterator[str]:
    """Yield a warning where the reward rose and the audit fell, both beyond chance."""
    for name, audit in gains.items():
        reward = gains.get(f"{name.removesuffix('audit')}reward")
        if name.endswith("audit") and reward is not None and reward.low > 0 and audit.high < 0:
            environment = name.removesuffix("audit").strip()
            of_environment = f" of {environment}" if environment else ""
            yield (
                f"the held-out reward{of_environment} rose by {reward.mean:.3f}, but the audit, "
                f"which training never sees, fell by {-audit.mean:.3f}: the policy exploits a "
                "fault of the verifier; read completions in rollouts.jsonl, and fix the verifier"
            )


def _column(scores: Scores, name: str, column: str) -> dict[TaskKey, float]:
    """Return the values called `column` of the tasks of environment `name`."""
    return {
        key: values[column]
        for key, values in scores.items()
        if key.env == name and column in values
    }
