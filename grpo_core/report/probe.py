"""Whether an environment can be trained on with a model, and with which settings: statistics of several attempts at each of some tasks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from statistics import fmean
from typing import Any

from grpo_core.protocol.types import Group, Rollout, Verdict
from grpo_core.report.statistics import (
    expected_differing,
    expected_mixed,
    pass_at,
    powers,
    quantile,
)

Judged = Sequence[Verdict]
"""The attempts at one task that could be judged."""

SELDOM = 0.05
"""An environment is untrainable at a level where fewer tasks than this have an attempt that passes, or one that fails, or attempts with
different rewards: nearly every group would be without an advantage, or have one for something else than success."""
MIXED_WANTED = 0.5
"""The expected share of groups with passes and failures from which a group size is large enough."""
GROUP_SIZES = (4, 8, 16, 32, 64)
MANY_CLIPPED = 0.1
"""Above this share of completions that were cut off, nobody knows how long they would have become, and the budget is doubled."""
ROOM = 1.25
"""The budget that is suggested, relative to the 99th percentile of what was not cut off."""
BUDGET_STEP = 8
BINS = 10


@dataclass(frozen=True, slots=True)
class Sampled:
    """What was sampled at one level. seconds: of single verdicts that were timed."""

    level: float
    groups: Sequence[Group[Any]]
    seconds: Sequence[float] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the statistics depend on beside the attempts. budget: most tokens of a turn. window: of pass rates that suit training.
    max_error_rate: share of attempts that could not be judged, above which a run stops."""

    parts: Sequence[str]
    budget: int
    open_ended: bool = False
    window: tuple[float, float] = (0.3, 0.7)
    max_error_rate: float = 0.2


@dataclass(frozen=True, slots=True)
class Quantiles:
    median: float
    p99: float


@dataclass(frozen=True, slots=True)
class Bin:
    """The share of rewards from `low` to `high`; the last bin holds its upper end, too."""

    low: float
    high: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelReport:
    """One level. Shares of attempts: unscored (no verdict), clipped (cut off at the budget), and of what was judged: pass_rate, unparsed
    (no answer was found). Shares of tasks: pass_at k attempts; mixed_passed, mixed_reward (groups whose attempts differ in success, in
    total reward). parts: mean values. None: nothing was judged or timed."""

    level: float
    tasks: int
    attempts: int
    unscored: float
    clipped: float
    pass_rate: float | None
    reward: float | None
    pass_at: Mapping[int, float]
    mixed_passed: float | None
    mixed_reward: float | None
    histogram: tuple[Bin, ...]
    parts: Mapping[str, float]
    part_histograms: Mapping[str, tuple[Bin, ...]]
    unparsed: float | None
    verify_seconds: Quantiles | None
    tokens: Quantiles | None
    group_size: int | None
    max_new_tokens: int | None
    trainable: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Report:
    """trainable: at some probed level; reason: in one sentence. The suggestions are those of the level that suits best; None where none
    does."""

    levels: tuple[LevelReport, ...]
    trainable: bool
    reason: str
    level: float | None = None
    group_size: int | None = None
    max_new_tokens: int | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def probe_report(sampled: Sequence[Sampled], terms: Terms) -> Report:
    """Levels at which nothing was sampled are left out."""
    verdicts = [verdict for each in sampled for task in _judged(each.groups) for verdict in task]
    bounds = _bounds([verdict.total for verdict in verdicts])
    part_bounds = {
        part: _bounds([verdict.rewards[part].value for verdict in verdicts]) for part in terms.parts
    }
    levels = tuple(
        _level_report(each, terms, bounds, part_bounds) for each in sampled if each.groups
    )
    known = [level for level in levels if level.pass_rate is not None]
    if not known:
        return Report(levels, False, levels[0].reason if levels else "nothing was sampled")
    fit = [level for level in known if level.trainable]
    best = min(fit or known, key=lambda level: _distance(level.pass_rate or 0.0, terms.window))
    if fit:
        return Report(
            levels,
            True,
            f"at level {best.level:g} {best.reason}",
            best.level,
            best.group_size,
            best.max_new_tokens,
        )
    where = (
        f"at level {best.level:g}"
        if len(levels) == 1
        else f"at no probed level; at level {best.level:g}, which is nearest,"
    )
    return Report(levels, False, f"{where} {best.reason}")


def settle(judged: Sequence[Judged], terms: Terms, *, unscored: float) -> tuple[bool, str]:
    """Whether training can begin with such attempts, and why.

    Where there is a best answer, partial rewards that differ are not enough: a policy that never succeeds can only learn to please them.
    Environments that are `open_ended` have no best answer, so there differing rewards are all that counts.
    """
    pairs = [task for task in judged if len(task) > 1]
    passes = _share(any(verdict.passed for verdict in task) for task in judged)
    fails = _share(any(not verdict.passed for verdict in task) for task in judged)
    differ = _share(_differ(task) for task in pairs)
    if unscored > terms.max_error_rate:
        return (
            False,
            f"{unscored:.0%} of the attempts could not be judged; a run stops above {terms.max_error_rate:.0%}",
        )
    if not pairs:
        return False, "no task has two attempts that could be compared"
    if not terms.open_ended and passes < SELDOM:
        return (
            False,
            f"only {passes:.1%} of the tasks have an attempt that passes, so there is no success to learn from",
        )
    if not terms.open_ended and fails < SELDOM:
        return (
            False,
            f"only {fails:.1%} of the tasks have an attempt that fails, so there is nothing left to learn",
        )
    if differ < SELDOM:
        return (
            False,
            f"rewards differ within only {differ:.1%} of the groups, and equal rewards give no advantage",
        )
    success = (
        "" if terms.open_ended else f"{passes:.0%} of the tasks have an attempt that passes and "
    )
    return True, f"{success}rewards differ within {differ:.0%} of the groups"


def token_budget(lengths: Sequence[int], *, clipped: float, budget: int) -> int:
    """What turns need, by the lengths of those that ended by themselves; at least twice the present budget if many were cut off."""
    needed = (
        BUDGET_STEP * math.ceil(ROOM * quantile(lengths, 0.99) / BUDGET_STEP) if lengths else budget
    )
    return max(needed, 2 * budget) if clipped > MANY_CLIPPED else needed


def _bounds(values: Sequence[float]) -> tuple[float, float]:
    """Over all levels, so that their histograms can be compared."""
    return (min(values), max(values)) if values else (0.0, 0.0)


def _level_report(
    sampled: Sampled,
    terms: Terms,
    bounds: tuple[float, float],
    part_bounds: Mapping[str, tuple[float, float]],
) -> LevelReport:
    rollouts = [rollout for group in sampled.groups for rollout in group.rollouts]
    judged = _judged(sampled.groups)
    verdicts = [verdict for task in judged for verdict in task]
    pairs = [task for task in judged if len(task) > 1]
    clipped = _share(rollout.finish == "length" for rollout in rollouts)
    unscored = 1 - len(verdicts) / len(rollouts)
    trainable, reason = settle(judged, terms, unscored=unscored)
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
        mixed_passed=_share(len({verdict.passed for verdict in task}) > 1 for task in pairs)
        if pairs
        else None,
        mixed_reward=_share(_differ(task) for task in pairs) if pairs else None,
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
        unparsed=_share(verdict.answer is None for verdict in verdicts) if verdicts else None,
        verify_seconds=_quantiles(sampled.seconds),
        tokens=_quantiles([sum(rollout.trainable) for rollout in rollouts]),
        group_size=_group_size(judged, terms) if trainable else None,
        max_new_tokens=_budget(rollouts, clipped, terms.budget),
        trainable=trainable,
        reason=reason,
    )


def _judged(groups: Sequence[Group[Any]]) -> list[Judged]:
    return [
        task
        for group in groups
        if (task := [verdict for verdict in group.verdicts if verdict.scored])
    ]


def _group_size(judged: Sequence[Judged], terms: Terms) -> int | None:
    """The smallest that makes enough groups mixed. With open ends only sizes that were sampled can be told."""
    if terms.open_ended:
        totals = [[verdict.total for verdict in task] for task in judged]
        sizes = [size for size in GROUP_SIZES if size <= min(map(len, totals))]
        return next(
            (size for size in sizes if expected_differing(totals, size) >= MIXED_WANTED), None
        )
    counts = [(sum(verdict.passed for verdict in task), len(task)) for task in judged]
    return next(
        (size for size in GROUP_SIZES if expected_mixed(counts, size) >= MIXED_WANTED), None
    )


def _budget(rollouts: Sequence[Rollout], clipped: float, budget: int) -> int | None:
    """None where a policy fills gaps, whose number is given."""
    if any(rollout.positions is not None for rollout in rollouts):
        return None
    whole = [rollout for rollout in rollouts if rollout.finish == "stop"]
    return token_budget(
        [length for rollout in whole for length in _turns(rollout)], clipped=clipped, budget=budget
    )


def _turns(rollout: Rollout) -> Iterator[int]:
    """The lengths of what the policy said between what the environment said."""
    for own, tokens in groupby(rollout.trainable):
        if own:
            yield sum(1 for _ in tokens)


def _histogram(totals: Sequence[float], bounds: tuple[float, float]) -> tuple[Bin, ...]:
    """Of equal width; a single one where all rewards are the same."""
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
    return Quantiles(quantile(values, 0.5), quantile(values, 0.99)) if values else None


def _distance(rate: float, window: tuple[float, float]) -> tuple[float, float]:
    """From the window, then from its middle."""
    low, high = window
    return max(low - rate, rate - high, 0.0), abs(rate - (low + high) / 2)


def _differ(task: Judged) -> bool:
    return len({verdict.total for verdict in task}) > 1


def _share(found: Iterator[bool]) -> float:
    values = list(found)
    return sum(values) / len(values) if values else 0.0
