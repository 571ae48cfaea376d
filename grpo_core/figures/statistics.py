"""Compute statistics of evaluations: pass@k and similar estimates, confidence intervals."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import NormalDist, fmean, multimode, stdev

from grpo_core.protocol.ties import settled

_MIN_CORRELATION, _MAX_CORRELATION = 0.01, 0.9
"""Bounds of the estimated correlation of attempts at one task.

A few tasks cannot show that all are equally hard, nor that none has mixed outcomes.
"""


def t_quantile(share: float, freedom: int) -> float:
    """Return the quantile of Student's t distribution.

    It is exact for one and two degrees of freedom. Above, it is the Cornish-Fisher expansion
    (Abramowitz and Stegun, 26.7.5), which is right to 0.2 % at 0.975.

    Args:
        share: the share of the distribution below it, between 0 and 1.
        freedom: the degrees of freedom, at least 1.
    """
    if freedom == 1:
        return math.tan(math.pi * (share - 0.5))
    if freedom == 2:
        return (2 * share - 1) / math.sqrt(2 * share * (1 - share))
    z = NormalDist().inv_cdf(share)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + math.fsum(term / freedom**power for power, term in enumerate(terms, 1))


@dataclass(frozen=True, slots=True)
class Estimate:
    """The mean of a statistic over tasks, with errors by bootstrap over tasks."""

    value: float
    error: float
    """The standard error."""
    low: float
    """The lower end of the 95 % interval."""
    high: float
    """The upper end of the 95 % interval."""
    tasks: int
    """The number of tasks."""


def pass_at(k: int, passed: Sequence[bool]) -> float:
    """Return the unbiased estimate of the chance that one of k samples of a task passes.

    From n samples, of which c passed: 1 - C(n-c, k) / C(n, k) (Chen et al., arXiv 2107.03374).

    Raises:
        ValueError: k is not between 1 and n.
    """
    n, c = _count_samples(k, passed), sum(passed)
    return 1 - math.comb(n - c, k) / math.comb(n, k)


def best_at(k: int, rewards: Sequence[float]) -> float:
    """Return the unbiased estimate of the expected best reward of k samples of a task.

    From n samples: the mean of the best reward over all subsets of size k.

    Raises:
        ValueError: k is not between 1 and n.
    """
    n = _count_samples(k, rewards)
    return math.fsum(
        reward * math.comb(rank, k - 1) / math.comb(n, k)
        for rank, reward in enumerate(sorted(rewards))
    )


def majority_at(
    k: int, answers: Sequence[tuple[str | None, bool]], *, subsets: int = 500, seed: int = 0
) -> float:
    """Return the chance that the most frequent answer among k samples of a task passes.

    It is the mean over all subsets of size k, or over `subsets` random ones where there are more.
    A sample without an answer has no vote; a tie is decided at random.

    Args:
        k: Samples that vote.
        answers: For each of the n samples of a task, its answer and whether it passed.
        subsets: The most subsets to evaluate.
        seed: The seed of the random subsets.

    Raises:
        ValueError: k is not between 1 and n.
    """
    n = _count_samples(k, answers)
    if math.comb(n, k) <= subsets:
        return fmean(_vote_pass_rate(chosen) for chosen in combinations(answers, k))
    rng = random.Random(seed)
    return fmean(_vote_pass_rate(rng.sample(answers, k)) for _ in range(subsets))


def _vote_pass_rate(answers: Sequence[tuple[str | None, bool]]) -> float:
    """Return the pass rate of the most frequent answer, averaged over ties; 0 without answers."""
    winners = multimode(answer for answer, _ in answers if answer is not None)
    # The same answer may get different verdicts in different samples, so its pass rate is a mean.
    pass_rates = [
        fmean(passed for other, passed in answers if other == answer) for answer in winners
    ]
    return fmean(pass_rates) if pass_rates else 0.0


def over_tasks(values: Sequence[float], *, draws: int = 2000, seed: int = 0) -> Estimate:
    """Return the mean of a statistic over tasks, with clustered errors by bootstrap.

    Samples of one task are alike, so whole tasks are drawn with replacement.

    Args:
        values: The value of the statistic for each task.
        draws: The number of bootstrap samples.
        seed: The seed of the draws.

    Raises:
        ValueError: There are no tasks.
    """
    if not values:
        raise ValueError("there are no tasks to take a mean over")
    rng = random.Random(seed)
    means = sorted(fmean(rng.choices(values, k=len(values))) for _ in range(draws))
    low, high = means[round(0.025 * (draws - 1))], means[round(0.975 * (draws - 1))]
    return Estimate(fmean(values), stdev(means), low, high, len(values))


def expected_mixed(counts: Sequence[tuple[int, int]], size: int) -> float:
    """Return the expected share of groups of `size` attempts that hold both passes and failures.

    A task that passes with probability p gives a mixed group with probability
    1 - p^size - (1 - p)^size. p is not known (0 of 8 passes does not mean never), so the result is
    the mean over tasks of the expectation of this probability. The pass probabilities of the tasks
    are modelled as drawn from Beta(a, b); after c passes in n attempts, the posterior of a task is
    Beta(a + c, b + n - c), for which E[p^g] is the product of (a + c + i) / (a + b + n + i),
    i = 0 .. g - 1.

    a / (a + b) is the pass rate of all attempts with half a pass and half a failure added, and
    1 / (a + b + 1) is the correlation of attempts at the same task, estimated by analysis of
    variance. So tasks that differ no more than by chance share one probability, and tasks that
    differ much keep their own.

    Args:
        counts: (passes, attempts) of each task.
        size: The group size.
    """
    passed, attempts = sum(c for c, _ in counts), sum(n for _, n in counts)
    mean, strength = (passed + 0.5) / (attempts + 1), 1 / _attempt_correlation(counts) - 1
    a, b = mean * strength, (1 - mean) * strength
    return fmean(
        1 - _expected_power(a + c, b + n - c, size) - _expected_power(b + n - c, a + c, size)
        for c, n in counts
    )


def expected_differing(totals: Sequence[Sequence[float]], size: int) -> float:
    """Return the expected share of groups of `size` attempts whose rewards differ.

    The estimate is unbiased: the mean over all subsets of each task's rewards.

    Args:
        totals: The rewards of each task, at least `size` of them.
        size: The group size.
    """
    return fmean(
        1
        - sum(math.comb(n, size) for n in Counter(settled(task)).values())
        / math.comb(len(task), size)
        for task in totals
    )


def wilson_interval(share: float, count: int, *, confidence: float) -> tuple[float, float]:
    """Return the confidence interval of a share, by Wilson's score (JASA 22, 1927).

    Args:
        share: The observed share, from 0 to 1.
        count: The number of observations; without any, the interval is (0, 1).
        confidence: The chance that the interval holds the true share, such as 0.95.
    """
    if not count:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    scale = 1 + z * z / count
    middle = (share + z * z / (2 * count)) / scale
    margin = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count)) / scale
    return max(0.0, middle - margin), min(1.0, middle + margin)


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of the values do not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def powers(most: int) -> list[int]:
    """Return 1, 2, 4, ... below `most`, and then `most`; nothing for 0."""
    return [*(2**i for i in range((most - 1).bit_length())), most] if most else []


def _attempt_correlation(counts: Sequence[tuple[int, int]]) -> float:
    """Return the intraclass correlation of two attempts at the same task, clipped to its bounds.

    It is estimated from the mean squares between and within tasks.
    """
    tasks, attempts = len(counts), sum(n for _, n in counts)
    if tasks < 2 or attempts == tasks:
        return _MIN_CORRELATION
    mean = sum(c for c, _ in counts) / attempts
    between = sum(n * (c / n - mean) ** 2 for c, n in counts) / (tasks - 1)
    within = sum(c * (n - c) / n for c, n in counts) / (attempts - tasks)
    attempts_per_task = (attempts - sum(n * n for _, n in counts) / attempts) / (tasks - 1)
    spread = between + (attempts_per_task - 1) * within
    return (
        min(_MAX_CORRELATION, max(_MIN_CORRELATION, (between - within) / spread))
        if spread
        else _MIN_CORRELATION
    )


def _expected_power(a: float, b: float, size: int) -> float:
    """Return E[p^size] for p from Beta(a, b)."""
    return math.prod((a + i) / (a + b + i) for i in range(size))


def _count_samples(k: int, samples: Sequence[object]) -> int:
    """Return the number of samples; raise ValueError unless k is between 1 and that."""
    if not 1 <= k <= len(samples):
        raise ValueError(
            f"k is {k}, but a task has {len(samples)} samples; choose k from 1 to {len(samples)}"
        )
    return len(samples)
