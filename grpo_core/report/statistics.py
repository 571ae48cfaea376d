"""Statistics of evaluations."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, stdev
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
_ALIKE, _DIFFERENT = 0.01, 0.9
"""Bounds of the correlation of attempts at one task: a handful of tasks shows neither that all are equally hard nor that none is mixed."""


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
    return Gain(
        fmean(before[key] for key in keys),
        fmean(after[key] for key in keys),
        mean - margin,
        mean + margin,
        len(keys),
    )


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
    return math.fsum(
        reward * math.comb(rank, k - 1) / math.comb(n, k)
        for rank, reward in enumerate(sorted(rewards))
    )


def majority_at(
    k: int, answers: Sequence[tuple[str | None, bool]], *, subsets: int = 500, seed: int = 0
) -> float:
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


def over_tasks(values: Sequence[float], *, draws: int = 2000, seed: int = 0) -> Estimate:
    """The mean of a statistic, of which each task has one value. Samples of one task are alike, so whole tasks are drawn with replacement:
    the error is clustered. Raises ValueError without tasks."""
    if not values:
        raise ValueError("there are no tasks to take a mean over")
    rng = random.Random(seed)
    means = sorted(fmean(rng.choices(values, k=len(values))) for _ in range(draws))
    low, high = means[round(0.025 * (draws - 1))], means[round(0.975 * (draws - 1))]
    return Estimate(fmean(values), stdev(means), low, high, len(values))


def expected_mixed(counts: Sequence[tuple[int, int]], size: int) -> float:
    """The share of groups of `size` attempts that would hold passes and failures, from (passed, attempts) of each task.

    A task that passes with probability p gives a mixed group with 1 - p^size - (1 - p)^size, and the result is the mean over tasks of
    its expectation, since no p is known: 0 of 8 passes does not mean never. The pass probabilities of the tasks are taken as drawn from
    Beta(a, b); after c of n passes that of a task is Beta(a + c, b + n - c), for which E[p^g] is the product of (a + c + i) / (a + b + n
    + i), i = 0 .. g - 1. a / (a + b) is the pass rate of all attempts with half a pass and half a failure added, and 1 / (a + b + 1) the
    correlation of attempts at the same task, estimated by analysis of variance. So tasks that differ no more than chance would have it
    share one probability, and tasks that differ much keep their own.
    """
    passed, attempts = sum(c for c, _ in counts), sum(n for _, n in counts)
    mean, strength = (passed + 0.5) / (attempts + 1), 1 / _correlation(counts) - 1
    a, b = mean * strength, (1 - mean) * strength
    return fmean(
        1 - _power(a + c, b + n - c, size) - _power(b + n - c, a + c, size) for c, n in counts
    )


def expected_differing(totals: Sequence[Sequence[float]], size: int) -> float:
    """The share of groups of `size` attempts whose rewards would differ, from each task's rewards, of which there are at least `size`:
    unbiased, as the mean over all subsets."""
    return fmean(
        1 - sum(math.comb(n, size) for n in Counter(task).values()) / math.comb(len(task), size)
        for task in totals
    )


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def powers(most: int) -> Iterator[int]:
    """1, 2, 4, ... below `most`, and that itself."""
    k = 1
    while k < most:
        yield k
        k *= 2
    if most:
        yield most


def _correlation(counts: Sequence[tuple[int, int]]) -> float:
    """Of two attempts at the same task (intraclass, from the mean squares between and within tasks), kept between its bounds."""
    tasks, attempts = len(counts), sum(n for _, n in counts)
    if tasks < 2 or attempts == tasks:
        return _ALIKE
    mean = sum(c for c, _ in counts) / attempts
    between = sum(n * (c / n - mean) ** 2 for c, n in counts) / (tasks - 1)
    within = sum(c * (n - c) / n for c, n in counts) / (attempts - tasks)
    usual = (attempts - sum(n * n for _, n in counts) / attempts) / (
        tasks - 1
    )  # attempts of a task
    spread = between + (usual - 1) * within
    return min(_DIFFERENT, max(_ALIKE, (between - within) / spread)) if spread else _ALIKE


def _power(a: float, b: float, size: int) -> float:
    """E[p^size] for p from Beta(a, b)."""
    return math.prod((a + i) / (a + b + i) for i in range(size))


def _enough(k: int, samples: Sequence[object]) -> int:
    if not 1 <= k <= len(samples):
        raise ValueError(
            f"k is {k}, but a task has {len(samples)} samples; k has to be from 1 to that"
        )
    return len(samples)
