"""Levels that follow the pass rate: where they go, what is logged, and that a resumed run goes on at the same level."""

from dataclasses import replace
from typing import Any

import pytest

from grpo_core import Group, Reward, Rollout, Task, TaskKey, Verdict
from grpo_core.config.overrides import build_config
from grpo_core.config.settings import CurriculumConfig
from grpo_core.protocol.errors import ConfigError
from grpo_core.runs.folder import RunFolder
from grpo_core.train.rollout.curriculum import Curriculum

from .killing import killed
from .runs import untimed
from .trained import make

ON = CurriculumConfig(enabled=True, attempts=10)


def group(passed: int, failed: int, *, unscored: int = 0, name: str = "letters") -> Group[Any]:
    verdicts = (
        [Verdict({"r": Reward(1.0)}, passed=True)] * passed
        + [Verdict({"r": Reward(0.0)})] * failed
        + [Verdict.failed("x")] * unscored
    )
    task = Task(TaskKey(name, "train", 0), "", None)
    return Group(task, [Rollout.of("")] * len(verdicts), verdicts)


def at_level(group: Group[Any], level: float) -> Group[Any]:
    """The same group, dealt at this level."""
    return replace(group, task=replace(group.task, key=replace(group.task.key, level=level)))


def level_after(*groups: Group[Any], start: float = 0.5) -> float:
    curriculum = Curriculum(ON, {"letters": start})
    for each in groups:
        curriculum.add([at_level(each, curriculum.levels["letters"])])
    return curriculum.levels["letters"]


@pytest.mark.parametrize(
    ("passed", "level"),
    [(0, 0.4), (2, 0.4), (3, 0.5), (7, 0.5), (8, 0.6), (10, 0.6)],
)
def test_the_level_follows_the_pass_rate_and_rests_inside_the_window(passed, level):
    assert level_after(group(passed, 10 - passed)) == level


def test_too_few_attempts_decide_nothing_and_unscored_ones_do_not_count():
    assert level_after(group(9, 0)) == 0.5
    assert level_after(group(9, 0, unscored=5)) == 0.5
    assert level_after(group(9, 0), group(1, 0)) == 0.6


def test_only_the_last_attempts_count_and_those_of_another_level_do_not():
    assert level_after(group(5, 5), group(10, 0)) == 0.6
    assert level_after(group(10, 0), group(5, 0)) == 0.6
    assert level_after(group(10, 0), group(10, 0)) == 0.7


def test_what_was_dealt_before_the_level_moved_does_not_count():
    curriculum = Curriculum(ON, {"letters": 0.5})
    curriculum.add([at_level(group(10, 0), 0.5)])
    late = curriculum.add([at_level(group(10, 0), 0.5), at_level(group(0, 1), 0.6)])
    assert late["curriculum/pass_rate"] == 0.0
    assert curriculum.levels["letters"] == 0.6


def test_a_level_ends_at_0_and_1_and_stays_a_round_number():
    assert level_after(*[group(10, 0)] * 30, start=0.05) == 1.0
    assert level_after(*[group(0, 10)] * 30, start=0.05) == 0.0
    assert level_after(group(10, 0), group(10, 0), start=0.1) == 0.3


def test_each_environment_of_a_mixture_has_its_own_level_in_the_log():
    curriculum = Curriculum(ON, {"letters": 0.5, "digits": 0.0})
    metrics = curriculum.add([at_level(group(9, 1), 0.5), group(4, 6, name="digits")])
    letters = {"letters/curriculum/level": 0.5, "letters/curriculum/pass_rate": 0.9}
    digits = {"digits/curriculum/level": 0.0, "digits/curriculum/pass_rate": 0.4}
    assert metrics == {**letters, **digits}
    assert curriculum.levels == {"letters": 0.6, "digits": 0.0}


def test_a_window_without_room_is_refused():
    message = r"curriculum\.low is 0\.8; it has to be below curriculum\.high, 0\.7"
    with pytest.raises(ConfigError, match=message):
        build_config([{"environment": "letters", "curriculum": {"low": 0.8}}])


@pytest.fixture
def settings(settings: dict[str, Any]) -> dict[str, Any]:
    own = {"enabled": True, "attempts": 24, "low": 0.0, "high": 0.05}
    times = {"steps": 18, "eval": {"tasks": 4}, "checkpoint": {"every": 4}}
    return {**settings, **times, "level": 0.3, "curriculum": own}


@pytest.mark.slow
def test_a_run_climbs_with_what_it_learns_and_a_resumed_one_is_the_undisturbed_one(
    settings, tmp_path
):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    make(whole, settings).run()
    steps = [line for line in untimed(whole) if "curriculum/level" in line]
    levels = [line["curriculum/level"] for line in steps]
    assert levels[0] == 0.3
    assert levels[-1] > 0.3
    asked = {
        (line["step"], line["key"]["split"], line["key"]["level"])
        for line in RunFolder(whole).rollout_lines()
    }
    assert {level for _, split, level in asked if split == "eval"} == {0.3}
    trained_on = sorted((step, level) for step, split, level in asked if split == "train")
    assert trained_on == list(enumerate(levels, 1))
    with killed(parts, step=14) as observer:
        make(parts, settings, observer=observer).run()
    second = make(RunFolder(parts), settings)
    assert second.resume() == 12  # in the middle of a window
    second.run()
    assert untimed(parts) == untimed(whole)
