"""Look for rewards that may have been paid for the wrong reason."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import fmean, stdev
from typing import Any

from grpo_core.api.runs import JsonObject
from grpo_core.protocol.ties import same_reward
from grpo_report.html.opened import OpenRun
from grpo_report.html.phrases import TEXT_CHARACTERS, frequent_phrases
from grpo_report.html.series import Columns

MOST_ROWS = 50
"""Of disagreements and of flips."""
_READ_GROUPS = 500
"""The most groups whose texts are compared."""
_READ_CHARACTERS = 600_000
"""After so many, no further group is read, so that the page need not wait."""
_SHARE = 5
"""The first and the last of so many parts of the steps are compared."""
_DOWN = "it fell while the reward rose"
_MOVED = "it moved while the reward rose"
_LEAST_CHANGE = 0.1
"""Of a measure that may go either way, as a share of what it was."""
_SUSPICIOUS: Mapping[str, tuple[int, str]] = {
    "completion_length/mean": (0, _MOVED),
    "groups/distinct": (-1, _DOWN),
    "env/audit": (-1, _DOWN),
    "eval/env/audit": (-1, _DOWN),
    "pass_rate": (-1, _DOWN),
    "eval/pass_rate": (-1, _DOWN),
    "alarms/reference_logprob": (-1, _DOWN),
    "entropy": (2, ""),
    "kl": (2, ""),
}
"""Measures by the direction that is suspicious where the reward rises: -1 down, 0 both, 2 none."""


def forensics(run: OpenRun) -> dict[str, Any]:
    """Return the findings of a run as the page shows them."""
    disagreements = run.index.disagreements(limit=MOST_ROWS)
    flips = run.index.flips(limit=MOST_ROWS)
    metrics = run.metrics()
    cut = [
        name
        for name, found in (("same answers", disagreements), ("flips", flips))
        if len(found) == MOST_ROWS
    ]
    return {
        "trends": trends(metrics["steps"]["columns"], metrics["evaluations"]["columns"]),
        "disagreements": [
            {
                "at": at,
                "environment": found.environment,
                "answer": found.answer,
                "low": found.low,
                "high": found.high,
                "rollouts": found.rollouts,
            }
            for found in disagreements
            if (at := _place(run, found.group)) is not None
        ],
        "flips": [
            {
                "environment": flip.environment,
                "split": flip.split,
                "task": flip.task,
                "seed": flip.seed,
                "level": flip.level,
                "passed_at": passed_at,
                "failed_at": failed_at,
            }
            for flip in flips
            if (passed_at := _place(run, flip.passed_group)) is not None
            and (failed_at := _place(run, flip.failed_group)) is not None
        ],
        "phrases": _phrases(run),
        "cut": f"Of {' and '.join(cut)}, the first {MOST_ROWS} are listed." if cut else None,
    }


def trends(steps: Columns, evaluations: Columns) -> list[dict[str, Any]]:
    """Return how the reward and the measures beside it changed from the first to the last fifth.

    Args:
        steps: the metrics of the steps.
        evaluations: those of the evaluations, whose names begin with "eval/".
    """
    columns = steps | {name: values for name, values in evaluations.items() if name != "step"}
    reward = _change(columns.get("reward/mean", []))
    if reward is None:
        return []
    rising = reward["direction"] > 0
    rows = [{"name": "reward/mean", **reward, "suspicious": None}]
    for name, values in columns.items():
        known = next((known for known in _SUSPICIOUS if _is_named(name, known)), None)
        change = _change(values) if known else None
        if known is None or change is None:
            continue
        wrong, reason = _SUSPICIOUS[known]
        moved = abs(change["last"] - change["first"]) > _LEAST_CHANGE * abs(change["first"])
        direction = change["direction"]
        against = direction == wrong if wrong else moved and direction != 0
        rows.append({"name": name, **change, "suspicious": reason if rising and against else None})
    return rows


def _is_named(name: str, known: str) -> bool:
    """Return whether a metric is the known one, of the run or of one of its environments."""
    is_evaluation = name.startswith("eval/")
    return name == known or (
        is_evaluation == known.startswith("eval/")
        and name.endswith(f"/{known.removeprefix('eval/')}")
    )


def _change(values: Sequence[float | None]) -> dict[str, Any] | None:
    """Return the first and last means, and the direction if it is beyond two standard errors."""
    known = [value for value in values if value is not None]
    size = len(known) // _SHARE
    if size < 2:
        return None
    first, last = known[:size], known[-size:]
    error = sqrt((stdev(first) ** 2 + stdev(last) ** 2) / size)
    difference = fmean(last) - fmean(first)
    return {
        "first": fmean(first),
        "last": fmean(last),
        "steps": len(known),
        "direction": 0 if abs(difference) <= 2 * error else 1 if difference > 0 else -1,
    }


def _read(run: OpenRun, group: int) -> JsonObject | None:
    """Return a group of the index, or None if the run has gone back to a checkpoint since."""
    try:
        return run.index.read(group)
    except KeyError:
        return None


def _place(run: OpenRun, group: int) -> str | None:
    """Return the place of a group of the index in addresses of the page, if it is still there."""
    data = _read(run, group)
    return None if data is None else f"{data['step']}/{data['split']}/{data['number']}"


def _phrases(run: OpenRun) -> dict[str, Any]:
    """Return the phrases of the rollouts with the highest reward of their group.

    Random groups are read, until there are enough of them or their texts are long enough.
    """
    numbers = range(1, run.index.facets().groups + 1)
    paid: list[str] = []
    rest: list[str] = []
    characters = groups = 0
    for number in random.Random(0).sample(numbers, len(numbers)):
        if groups >= _READ_GROUPS or characters >= _READ_CHARACTERS:
            break
        texts = _paid_texts(run, number)
        highest = max((total for total, _ in texts), default=0.0)
        if all(same_reward(total, highest) for total, _ in texts):
            continue
        groups += 1
        for total, text in texts:
            characters += len(text)
            (paid if same_reward(total, highest) else rest).append(text)
    return {
        "groups": groups,
        "paid": len(paid),
        "rest": len(rest),
        "rows": frequent_phrases(paid, rest),
    }


def _paid_texts(run: OpenRun, group: int) -> list[tuple[float, str]]:
    """Return the reward and what the policy said of each scored rollout of a group."""
    data = _read(run, group)
    return [
        (rollout["verdict"]["total"], _said(rollout["messages"]))
        for rollout in (data["rollouts"] if data else ())
        if rollout["verdict"] and rollout["verdict"]["error"] is None and rollout.get("messages")
    ]


def _said(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return what the policy was paid for: its answers, without its thoughts."""
    text = "\n".join(one["content"] for one in messages if one["role"] == "assistant")
    return text[:TEXT_CHARACTERS]
