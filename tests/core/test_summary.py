"""Attempts as statistics: what could not be judged is counted and is in none of them."""

from __future__ import annotations

import pytest

from grpo_core import Message, Reward, Rollout, Task, TaskKey, Verdict
from grpo_core.figures.summary import summarize
from grpo_core.protocol.types import Group


def group(index: int, verdicts: list[Verdict], finish: str = "stop") -> Group[None]:
    rollouts = [
        Rollout((Message("assistant", "x"),), finish, (1,), (2, 3), (0.0, 0.0), (1, 1))
        for _ in verdicts
    ]  # type: ignore[arg-type]
    return Group(Task(TaskKey("sums", "eval", index), "1 + 1?", None), rollouts, verdicts)


def verdict(right: bool, answer: str | None = "2") -> Verdict:
    return Verdict(
        {"form": Reward(0.5, weight=0.2), "exact": Reward(float(right), weight=0.8)},
        passed=right,
        answer=answer,
    )


def test_every_statistic_is_a_mean_over_tasks() -> None:
    groups = [
        group(0, [verdict(True)] * 3 + [verdict(False, "3")]),
        group(1, [verdict(False, None)] * 4, finish="length"),
    ]
    found = summarize(groups, environment="sums", level=0.5, samples=4, parts=["form", "exact"])
    values = {name: estimate.value for name, estimate in found.statistics.items()}
    expected = {
        "pass rate": 0.375,
        "reward": 0.1 + 0.8 * 0.375,
        "pass@2": 0.5,
        "pass@4": 0.5,
        "max@2": 0.1 + 0.8 * 0.5,
        "max@4": 0.1 + 0.8 * 0.5,
        "majority@2": 0.5 * 0.75,  # of six pairs three are 2, 2 and three are tied
        "majority@4": 0.5,
        "part form": 0.5,
        "part exact": 0.375,
    }
    assert values == {name: pytest.approx(value) for name, value in expected.items()}
    assert (found.tasks, found.attempts, found.unscored) == (2, 8, 0)
    assert (found.clipped, found.tokens) == (0.5, 16)
    assert found.to_json()["statistics"]["pass@2"]["tasks"] == 2


def test_what_could_not_be_judged_is_no_0() -> None:
    broken = Verdict.failed("the judge was gone")
    groups = [group(0, [verdict(True), broken, verdict(True)]), group(1, [broken] * 3)]
    found = summarize(groups, environment="sums", level=0.0, samples=3, parts=["exact"])
    assert found.statistics["pass rate"].value == 1.0
    assert found.statistics["pass rate"].tasks == 1
    assert "pass@2" in found.statistics
    assert "pass@3" not in found.statistics
    assert (found.attempts, found.unscored) == (6, 4)


def test_nothing_judged_is_nothing_said() -> None:
    gone = [group(0, [Verdict.failed("gone")])]
    found = summarize(gone, environment="sums", level=0.0, samples=1, parts=["exact"])
    assert found.statistics == {}
    assert summarize([], environment="sums", level=0.0, samples=1, parts=[]).tasks == 0
