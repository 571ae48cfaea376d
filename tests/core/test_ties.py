"""Rewards that differ by rounding are equal in every report, comparison and export."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpo_core import Group, Message, Reward, Rollout, Task, TaskKey, Verdict
from grpo_core.figures.gains import paired_gain
from grpo_core.figures.statistics import expected_differing
from grpo_core.runs.attempts import Fields, attempt_line
from grpo_core.runs.folder import RunFolder
from grpo_report.comparison import Attempts, Evaluation, compare
from grpo_report.export import ExportChoice, choose
from grpo_report.html.forensics import forensics
from grpo_report.html.opened import OpenRun
from grpo_report.indexes.index import RolloutIndex
from grpo_report.rescoring import Rescored

SUM = 0.1 + 0.2
KEYS = [TaskKey("sums", "train", number) for number in range(12)]


def verdict(reward: float, **more: Any) -> Verdict:
    return Verdict({"exact": Reward(reward)}, answer="3", **more)


def group(key: TaskKey, rewards: Sequence[float]) -> Group[None]:
    task = Task(key, (Message("user", "1 + 2?"),), None)
    rollouts = [Rollout((Message("assistant", f"It is 3 {n}"),)) for n in range(len(rewards))]
    return Group(task, rollouts, [verdict(reward) for reward in rewards])


def test_a_gain_that_is_rounding_is_none() -> None:
    """Twelve tasks that each rose by 6e-17 would otherwise be a rise beyond chance."""
    gain = paired_gain(dict.fromkeys(KEYS, 0.3), dict.fromkeys(KEYS, SUM))
    assert gain is not None
    assert (gain.low, gain.high) == (0.0, 0.0)
    before, after = (
        Evaluation(name, {key: Attempts((reward,), (False,), ("x",)) for key in KEYS}, 0)
        for name, reward in (("a", 0.3), ("b", SUM))
    )
    assert compare(before, after).reward.p_value == 1.0


def test_groups_of_a_probe_differ_by_more_than_rounding() -> None:
    assert expected_differing([[SUM, 0.3, 0.3]], 2) == 0.0
    assert expected_differing([[SUM, 0.3, 0.4]], 2) == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("after", "change"), [((SUM, 0.0), ""), ((0.4, 0.0), "total"), ((0.0, 0.3), "parts")]
)
def test_a_verdict_that_rounding_changed_has_not_changed(
    after: tuple[float, float], change: str
) -> None:
    old, new = (Verdict({"a": Reward(a), "b": Reward(b)}) for a, b in ((0.3, 0.0), after))
    assert Rescored(1, KEYS[0], 0, Rollout.of("3"), old, new).change == change


def test_an_export_takes_a_reward_that_is_reached_but_for_rounding() -> None:
    """Among equal rewards the order of the run counts, and not their last bits."""
    one = group(KEYS[0], [1 - 2**-53, 1.0, 0.5])
    lines = [
        {"step": 1, **attempt_line(KEYS[0], 0, number, *pair)}
        for number, pair in enumerate(zip(one.rollouts, one.verdicts, strict=True))
    ]
    (chosen,) = choose(lines, ExportChoice(reward=1.0)).values()
    assert [line["attempt"] for _, line in chosen] == [0, 1]
    (best,) = choose(lines, ExportChoice(reward=0.0, best=1)).values()
    assert [line["attempt"] for _, line in best] == [0]


def run_of(tmp_path: Path, *rewards: Sequence[float]) -> Path:
    folder = RunFolder(tmp_path / "run")
    sections = {"mixture": {}, "environment": "sums", "provenance": {}, "steps": 1}
    folder.start({"model": {"name": "m"}, "lora": {"enabled": True}, **sections})
    for number, values in enumerate(rewards):
        fields = Fields(number=number)
        one = replace(group(KEYS[number], values), advantages=[0.0] * len(values))
        folder.rollouts(1, one, fields)
    return folder.path


def test_one_answer_with_two_rewards_is_no_finding_if_they_differ_by_rounding(
    tmp_path: Path,
) -> None:
    run = run_of(tmp_path, [SUM, 0.3], [0.3, 0.4], [1e6, 1e6 + 1e-4])
    with RolloutIndex.open(run) as index:
        (row,) = index.disagreements()
    assert (row.low, row.high) == (0.3, 0.4)


def test_phrases_are_compared_in_groups_whose_rewards_differ_by_more(tmp_path: Path) -> None:
    opened = OpenRun(run_of(tmp_path, [SUM, 0.3], [SUM, 0.3, 0.1]), name="run")
    try:
        phrases = forensics(opened)["phrases"]
    finally:
        opened.close()
    assert (phrases["groups"], phrases["paid"], phrases["rest"]) == (1, 2, 1)
