"""What a batch looked like, as numbers."""

import math

import pytest

from grpo_core import Group, Reward, Rollout, Task, TaskKey, Verdict
from grpo_core.train.run.metrics import group_metrics


def group(*attempts: tuple[float, str | None] | None) -> Group[None]:
    """attempts: reward and answer, or None for one that could not be judged."""
    verdicts = [
        Verdict.failed("down")
        if attempt is None
        else Verdict({"reward": Reward(attempt[0])}, answer=attempt[1])
        for attempt in attempts
    ]
    return Group(
        Task(TaskKey("x", "train", 0), "?", None), [Rollout.of("")] * len(attempts), verdicts
    )


def metrics(*groups: Group[None]) -> dict[str, float]:
    return group_metrics(groups, {"x": ["reward"]})


def test_best_of_a_group_and_how_many_answers_differ_are_means_over_groups():
    found = metrics(
        group((0.0, "a"), (1.0, "b"), (0.5, "a"), None), group((0.25, None), (0.0, None))
    )
    assert found["groups/best"] == pytest.approx((1.0 + 0.25) / 2)
    assert found["groups/distinct"] == pytest.approx((2 / 3 + 0) / 2)
    assert found["groups/mixed"] == 1.0


def test_a_group_that_could_not_be_judged_is_in_neither():
    assert metrics(group(None, None), group((1.0, "a"), (1.0, "a")))["groups/distinct"] == 0.5
    nothing = metrics(group(None, None))
    assert math.isnan(nothing["groups/best"])
    assert math.isnan(nothing["groups/distinct"])
