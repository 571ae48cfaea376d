"""Read from the log of a run what it gained on held-out tasks."""

from __future__ import annotations

from collections.abc import Sequence

from grpo_core.figures.gains import Gain, Scores, gains_of, score
from grpo_core.protocol.types import TaskKey, Verdict
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.lines import Kind, kind_of


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
