"""Compute what a run gained on held-out tasks from the scores in its log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from grpo_core.protocol.types import TaskKey, Verdict
from grpo_core.report.statistics import Gain, paired_gain
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.lines import Kind, kind_of

Scores = dict[TaskKey, dict[str, float]]
"""By task, the compared values by name: reward, pass_rate, audit."""


def score(verdict: Verdict) -> dict[str, float]:
    """Return the values that two evaluations are compared by: reward, pass rate and any audit."""
    return {
        "reward": verdict.total,
        "pass_rate": float(verdict.passed),
        **{name: value for name, value in verdict.metrics.items() if name == "audit"},
    }


def logged_scores(folder: RunFolder, steps: Sequence[int]) -> dict[int, Scores]:
    """Return the scores by task that evaluations after these steps left in rollouts.jsonl."""
    scores: dict[int, Scores] = {step: {} for step in steps}
    for line in folder.rollout_lines(steps):
        if line["key"]["split"] == "eval" and line["verdict"]["error"] is None:
            scores[line["step"]][TaskKey(**line["key"])] = score(Verdict.from_json(line["verdict"]))
    return scores


def recorded_gains(folder: RunFolder) -> tuple[list[int], dict[str, Gain]]:
    """Return the steps after which a run was evaluated, and the gains from first to last.

    The gains are empty if the run was evaluated fewer than two times.
    """
    steps = sorted(
        {int(line["step"]) for line in folder.metric_lines() if kind_of(line) is Kind.EVALUATION}
    )
    if len(steps) < 2:
        return steps, {}
    scores = logged_scores(folder, [steps[0], steps[-1]])
    names = list(dict.fromkeys(key.env for key in scores[steps[0]]))
    return steps, gains_of(scores[steps[0]], scores[steps[-1]], names)


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
