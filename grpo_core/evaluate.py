"""Statistics of evaluations."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, stdev
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Gain:
    """A paired difference of means with its 95 % interval (normal approximation over tasks)."""

    before: float
    after: float
    low: float
    high: float
    tasks: int

    @property
    def mean(self) -> float:
        return self.after - self.before


def paired_gain(before: Mapping[Key, float], after: Mapping[Key, float]) -> Gain | None:
    """The gain over the tasks scored in both; None with fewer than two."""
    keys = [key for key in before if key in after]
    if len(keys) < 2:
        return None
    differences = [after[key] - before[key] for key in keys]
    margin = 1.96 * stdev(differences) / math.sqrt(len(keys))
    mean = fmean(differences)
    return Gain(fmean(before[key] for key in keys), fmean(after[key] for key in keys), mean - margin, mean + margin, len(keys))


@dataclass(frozen=True, slots=True)
class Estimate:
    """The mean of a statistic over tasks; error: its standard error, low .. high: the 95 % interval, both by bootstrap over tasks."""

    value: float
    error: float
    low: float
    high: float
    tasks: int


def pass_at(k: int, passed: Sequence[bool]) -> float:
    """Unbiased estimate of the chance that one of k samples passes, from n samples of a task: 1 - C(n-c, k) / C(n, k) (Chen et al., arXiv
    2107.03374)."""
    n, c = _enough(k, passed), sum(passed)
    return 1 - math.comb(n - c, k) / math.comb(n, k)


def best_at(k: int, rewards: Sequence[float]) -> float:
    """Unbiased estimate of the expected best reward of k samples, from n samples of a task: the mean over all subsets of k."""
    n = _enough(k, rewards)
    return math.fsum(reward * math.comb(rank, k - 1) / math.comb(n, k) for rank, reward in enumerate(sorted(rewards)))


def majority_at(k: int, answers: Sequence[tuple[str | None, bool]], *, subsets: int = 500, seed: int = 0) -> float:
    """The chance that the answer which most of k samples gave passes, from n samples of a task, each its answer and whether that passed.

    A sample without an answer has no vote; among answers with equally many votes one is drawn. The mean over all subsets of k, or, where
    there are more than `subsets`, over so many that are drawn.
    """
    n = _enough(k, answers)
    if math.comb(n, k) <= subsets:
        return fmean(_vote(chosen) for chosen in combinations(answers, k))
    rng = random.Random(seed)
    return fmean(_vote(rng.sample(answers, k)) for _ in range(subsets))


def _vote(answers: Sequence[tuple[str | None, bool]]) -> float:
    votes = Counter(answer for answer, _ in answers if answer is not None)
    most = max(votes.values(), default=0)
    winners = {answer for answer, count in votes.items() if count == most}
    # An answer may be judged differently from sample to sample: the vote is for the answer, its worth is the mean of its verdicts.
    worth = [fmean(passed for other, passed in answers if other == answer) for answer in winners]
    return fmean(worth) if worth else 0.0


def over_tasks(
    samples_by_task: Sequence[Sequence[T]], statistic: Callable[[Sequence[T]], float], *, draws: int = 2000, seed: int = 0
) -> Estimate:
    """`statistic` of each task's samples, as a mean over tasks. Samples of one task are alike, so whole tasks are drawn with replacement:
    the error is clustered. Raises ValueError without tasks."""
    values = [statistic(samples) for samples in samples_by_task]
    if not values:
        raise ValueError("there are no tasks to take a mean over")
    rng = random.Random(seed)
    means = sorted(fmean(rng.choices(values, k=len(values))) for _ in range(draws))
    low, high = means[round(0.025 * (draws - 1))], means[round(0.975 * (draws - 1))]
    return Estimate(fmean(values), stdev(means), low, high, len(values))


def _enough(k: int, samples: Sequence[object]) -> int:
    if not 1 <= k <= len(samples):
        raise ValueError(f"k is {k}, but a task has {len(samples)} samples; k has to be from 1 to that")
    return len(samples)
