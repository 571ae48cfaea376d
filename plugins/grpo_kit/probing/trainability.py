"""Say whether training can start from attempts at some tasks, and what may help if it cannot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from grpo_core import Verdict
from grpo_core.api.figures import advice_where_solved, advice_without_success
from grpo_core.protocol.ties import all_same
from grpo_kit.probing.probe_report import Terms

Judged = Sequence[Verdict]
"""The verdicts on the attempts at one task that could be judged."""

MIN_TASK_SHARE = 0.05
"""The least share of tasks with a pass, with a failure, and with attempts of different rewards.

Below it, a level is untrainable: nearly every group would have no advantage, or an advantage for
something other than success.
"""


def assess_trainability(
    judged: Sequence[Judged], terms: Terms, *, unscored: float, level: float, clipped: float
) -> tuple[bool, str, str]:
    """Return whether training can start from such attempts, why, and what may help if not.

    Where there is a best answer, differing partial rewards are not enough: a policy that never
    succeeds can only learn to raise the partial rewards. `open_ended` environments have no best
    answer, so there only differing rewards count.

    Args:
        judged: The verdicts on each task.
        terms: The settings of the probe.
        unscored: The share of attempts that could not be judged.
        level: The difficulty.
        clipped: The share of attempts that were cut off.
    """
    name = terms.environment
    own_level = level if terms.has_levels else None
    pairs = [task for task in judged if len(task) > 1]
    passes = share(any(verdict.passed for verdict in task) for task in judged)
    fails = share(any(not verdict.passed for verdict in task) for task in judged)
    differ = share(rewards_differ(task) for task in pairs)
    if unscored > terms.max_error_rate:
        return (
            False,
            f"{unscored:.0%} of the attempts could not be judged; a run stops above "
            f"{terms.max_error_rate:.0%}",
            f"see why: `grpo env score {name} --answer FILE`",
        )
    if not pairs:
        return False, "no task has two attempts that could be compared", "raise --samples"
    if not terms.open_ended and passes < MIN_TASK_SHARE:
        return (
            False,
            f"only {passes:.1%} of the tasks have an attempt that passes, so there is no success "
            "to learn from",
            advice_without_success(name, model=terms.model, level=own_level, clipped=clipped),
        )
    if not terms.open_ended and fails < MIN_TASK_SHARE:
        return (
            False,
            f"only {fails:.1%} of the tasks have an attempt that fails, so there is nothing left "
            "to learn",
            advice_where_solved(name, level=own_level),
        )
    if differ < MIN_TASK_SHARE:
        return (
            False,
            f"rewards differ within only {differ:.1%} of the groups, and equal rewards give no "
            "advantage",
            f"try more --samples, and a reward that tells answers apart (`grpo env score {name} "
            "--answer FILE` with a good and a bad one)",
        )
    success = (
        "" if terms.open_ended else f"{passes:.0%} of the tasks have an attempt that passes and "
    )
    return True, f"{success}rewards differ within {differ:.0%} of the groups", ""


def rewards_differ(task: Judged) -> bool:
    """Return whether the total rewards of a task differ."""
    return not all_same([verdict.total for verdict in task])


def share(values: Iterator[bool]) -> float:
    """Return the share of true values, 0 without values."""
    flags = list(values)
    return sum(flags) / len(flags) if flags else 0.0
