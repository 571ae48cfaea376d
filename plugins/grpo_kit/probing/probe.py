"""Decide whether a model can be trained on an environment, and with which settings.

The decision is made from several attempts at each of some tasks, for each probed level.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from statistics import fmean

from grpo_core import Rollout
from grpo_core.api.figures import Sampled, scored_verdicts
from grpo_core.figures.statistics import (
    expected_differing,
    expected_mixed,
    pass_at,
    powers,
    quantile,
)
from grpo_kit.probing.probe_report import Bin, LevelReport, ProbeReport, Quantiles, Terms
from grpo_kit.probing.trainability import Judged, assess_trainability, rewards_differ, share

MIN_MIXED_SHARE = 0.5
"""A group size is large enough if this share of groups is expected to hold passes and failures."""
GROUP_SIZES = (4, 8, 16, 32, 64)
"""The group sizes that may be suggested."""
MAX_CLIPPED_SHARE = 0.1
"""Above this share of clipped completions the token budget is doubled.

How long the clipped completions would have become is not known.
"""
BUDGET_HEADROOM = 1.25
"""The suggested token budget, relative to the 99th percentile of turns that were not clipped."""
BUDGET_STEP = 8
"""The suggested token budget is a multiple of this."""
MAX_HARMLESS_CLIPPED = 0.5
"""Above this share of clipped completions a run warns."""
BINS = 10
"""Bins of a histogram."""


def probe_report(sampled: Sequence[Sampled], terms: Terms) -> ProbeReport:
    """Return the report on all levels at which something was sampled."""
    verdicts = [
        verdict
        for level_sample in sampled
        for task in scored_verdicts(level_sample.groups)
        for verdict in task
    ]
    bounds = _bounds([verdict.total for verdict in verdicts])
    part_bounds = {
        part: _bounds([verdict.rewards[part].value for verdict in verdicts]) for part in terms.parts
    }
    levels = tuple(
        _level_report(level_sample, terms, bounds, part_bounds)
        for level_sample in sampled
        if level_sample.groups
    )
    judged_levels = [level for level in levels if level.pass_rate is not None]
    if not judged_levels:
        if not levels:
            return ProbeReport(levels, False, "nothing was sampled")
        return ProbeReport(levels, False, levels[0].reason, levels[0].advice)
    trainable = [level for level in judged_levels if level.trainable]
    best = min(
        trainable or judged_levels,
        key=lambda level: _window_distance(level.pass_rate or 0.0, terms.window),
    )
    if trainable:
        return ProbeReport(
            levels,
            True,
            f"at level {best.level:g} {best.reason}",
            level=best.level,
            group_size=best.group_size,
            max_new_tokens=best.max_new_tokens,
        )
    where = (
        f"at level {best.level:g}"
        if len(levels) == 1
        else f"at no probed level; at level {best.level:g}, which is nearest,"
    )
    return ProbeReport(levels, False, f"{where} {best.reason}", best.advice)


def cut_off_warnings(levels: Sequence[LevelReport], budget: int) -> tuple[str, ...]:
    """Return a warning for each level at which most attempts are cut off, as a run gives it.

    Args:
        levels: The reports of the levels.
        budget: The most tokens of a turn.
    """
    return tuple(
        f"at level {level.level:g} {level.clipped:.0%} of the attempts are cut off at {budget} "
        "tokens, so the verifier sees unfinished answers; raise --max-new-tokens, or ask for "
        "shorter answers in the prompt"
        for level in levels
        if level.clipped > MAX_HARMLESS_CLIPPED
    )


def token_budget(lengths: Sequence[int], *, clipped: float, budget: int) -> int:
    """Return the token budget that turns need.

    It is at least twice the present budget if many attempts were clipped.

    Args:
        lengths: Tokens of each turn that ended by itself.
        clipped: The share of attempts that were cut off at the budget.
        budget: The present budget.
    """
    needed = (
        BUDGET_STEP * math.ceil(BUDGET_HEADROOM * quantile(lengths, 0.99) / BUDGET_STEP)
        if lengths
        else budget
    )
    return max(needed, 2 * budget) if clipped > MAX_CLIPPED_SHARE else needed


def _bounds(values: Sequence[float]) -> tuple[float, float]:
    """Return the range of histograms, over all levels, so that levels can be compared."""
    return (min(values), max(values)) if values else (0.0, 0.0)


def _level_report(
    sampled: Sampled,
    terms: Terms,
    bounds: tuple[float, float],
    part_bounds: Mapping[str, tuple[float, float]],
) -> LevelReport:
    """Return the report on one level, with histograms over the given ranges."""
    rollouts = [rollout for group in sampled.groups for rollout in group.rollouts]
    judged = scored_verdicts(sampled.groups)
    verdicts = [verdict for task in judged for verdict in task]
    pairs = [task for task in judged if len(task) > 1]
    clipped = share(rollout.finish == "length" for rollout in rollouts)
    unscored = 1 - len(verdicts) / len(rollouts)
    trainable, reason, advice = assess_trainability(
        judged, terms, unscored=unscored, level=sampled.level, clipped=clipped
    )
    return LevelReport(
        level=sampled.level,
        tasks=len(sampled.groups),
        attempts=len(rollouts),
        unscored=unscored,
        clipped=clipped,
        pass_rate=fmean(verdict.passed for verdict in verdicts) if verdicts else None,
        reward=fmean(verdict.total for verdict in verdicts) if verdicts else None,
        pass_at={
            k: fmean(pass_at(k, [v.passed for v in task]) for task in judged)
            for k in powers(min(map(len, judged), default=0))
        },
        mixed_passed=share(len({verdict.passed for verdict in task}) > 1 for task in pairs)
        if pairs
        else None,
        mixed_reward=share(rewards_differ(task) for task in pairs) if pairs else None,
        histogram=_histogram([verdict.total for verdict in verdicts], bounds),
        parts={
            part: fmean(verdict.rewards[part].value for verdict in verdicts) for part in terms.parts
        }
        if verdicts
        else {},
        part_histograms={
            part: _histogram([v.rewards[part].value for v in verdicts], part_bounds[part])
            for part in terms.parts
        },
        unparsed=share(verdict.answer is None for verdict in verdicts) if verdicts else None,
        verify_seconds=_quantiles(sampled.seconds),
        tokens=_quantiles([rollout.sampled_tokens for rollout in rollouts]),
        group_size=_suggested_group_size(judged, terms) if trainable else None,
        max_new_tokens=_suggested_budget(rollouts, clipped, terms.budget),
        trainable=trainable,
        reason=reason,
        advice=advice,
    )


def _suggested_group_size(judged: Sequence[Judged], terms: Terms) -> int | None:
    """Return the smallest group size with enough mixed groups, or None.

    For open-ended environments, only sizes up to the number of sampled attempts can be estimated.
    """
    if terms.open_ended:
        totals = [[verdict.total for verdict in task] for task in judged]
        sizes = [size for size in GROUP_SIZES if size <= min(map(len, totals))]
        return next(
            (size for size in sizes if expected_differing(totals, size) >= MIN_MIXED_SHARE), None
        )
    counts = [(sum(verdict.passed for verdict in task), len(task)) for task in judged]
    return next(
        (size for size in GROUP_SIZES if expected_mixed(counts, size) >= MIN_MIXED_SHARE), None
    )


def _suggested_budget(rollouts: Sequence[Rollout], clipped: float, budget: int) -> int | None:
    """Return the suggested token budget, or None where the policy fills a given number of gaps."""
    if any(rollout.positions is not None for rollout in rollouts):
        return None
    turn_lengths = [
        sum(1 for _ in tokens)
        for rollout in rollouts
        if rollout.finish == "stop"
        for segment in rollout.segments
        for from_policy, tokens in groupby(segment.trainable)
        if from_policy
    ]
    return token_budget(turn_lengths, clipped=clipped, budget=budget)


def _histogram(totals: Sequence[float], bounds: tuple[float, float]) -> tuple[Bin, ...]:
    """Return bins of equal width; a single one where all rewards are the same."""
    low, high = bounds
    if not totals:
        return ()
    if low == high:
        return (Bin(low, high, 1.0),)
    width = (high - low) / BINS
    counts = Counter(min(BINS - 1, int((total - low) / width + 1e-9)) for total in totals)
    return tuple(
        Bin(low + i * width, low + (i + 1) * width, counts[i] / len(totals)) for i in range(BINS)
    )


def _quantiles(values: Sequence[float]) -> Quantiles | None:
    """Return median and 99th percentile, or None without values."""
    return Quantiles(quantile(values, 0.5), quantile(values, 0.99)) if values else None


def _window_distance(rate: float, window: tuple[float, float]) -> tuple[float, float]:
    """Return the distance of a pass rate from the window, then from its middle."""
    low, high = window
    return max(low - rate, rate - high, 0.0), abs(rate - (low + high) / 2)
