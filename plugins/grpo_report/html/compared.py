"""Compare two runs for the page, as `grpo compare` does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grpo_core import ConfigError, TaskKey
from grpo_report.comparison import Evaluation, compare, read_evaluation
from grpo_report.html.opened import OpenRun, place_of
from grpo_report.indexes.index import Filter

Places = dict[TaskKey, str]


def comparison(runs: Sequence[OpenRun], first: int, second: int) -> dict[str, Any]:
    """Return how a run differs from another one, or why they cannot be compared."""
    pair = {"first": first, "second": second}
    try:
        a, b = (read_evaluation(runs[number].path, None) for number in (first, second))
        difference = compare(a, b)
    except ConfigError as error:
        return {**pair, "error": str(error)}
    places = [_places(runs[number]) for number in (first, second)]
    return {
        **pair,
        "tasks": difference.reward.gain.tasks,
        "only_one": difference.only_one,
        "rows": [
            {
                "name": name,
                "before": measured.gain.before,
                "after": measured.gain.after,
                "mean": measured.gain.mean,
                "low": measured.gain.low,
                "high": measured.gain.high,
                "p": measured.p_value,
            }
            for name, measured in (
                ("Reward", difference.reward),
                ("Pass rate", difference.pass_rate),
            )
        ],
        "better": [_flip(key, a, b, places) for key in difference.better],
        "worse": [_flip(key, a, b, places) for key in difference.worse],
    }


def _places(run: OpenRun) -> Places:
    """Return the place of the last group of each held-out task."""
    return {
        TaskKey(row.environment, "eval", row.task, row.seed, row.level): place_of(row)
        for row in run.index.groups(Filter(split="eval"), limit=-1)
    }


def _flip(key: TaskKey, a: Evaluation, b: Evaluation, places: Sequence[Places]) -> dict[str, Any]:
    return {
        "environment": key.env,
        "task": key.index,
        "seed": key.seed,
        "level": key.level,
        "a": a.tasks[key].pass_rate,
        "b": b.tasks[key].pass_rate,
        "a_at": places[0].get(key),
        "b_at": places[1].get(key),
    }
