"""The kit passes honest designs beside what its checks look for, and still finds the faults there."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from grpo_core import Environment
from grpo_core.kit.result import CheckResult
from grpo_core.testing import check_environment

from .sampled import some_of

sys.path.insert(0, str(Path(__file__).parent))

import planted_neighbours as planted

ONE_OF_EACH_HONEST = (
    planted.HelperThatEnds,
    planted.PinnedAgain,
    planted.LocaleForAMoment,
    planted.HarderByThePower,
    planted.Encyclopedia,
    planted.DesksBesideOthers,
    planted.CopiesAsTold,
)
ONE_OF_EACH_FAULT = (
    planted.HelperThatStays,
    planted.HurriedBehindTheLocale,
    planted.RowsInItsIndex,
    planted.HasASecretBackup,
)


def asked(env: Environment[Any], check: str) -> CheckResult:
    (result,) = check_environment(env, tasks=8, only=[check], isolation="inline").results
    return result


@pytest.mark.parametrize(
    ("env", "check"), some_of(planted.HONEST.items(), default=ONE_OF_EACH_HONEST)
)
def test_an_honest_design_is_valid(env: type[Environment[Any]], check: str) -> None:
    result = asked(planted.made(env), check)
    assert result.status == "valid", result.message


@pytest.mark.parametrize(
    ("env", "check"), some_of(planted.FAULTS.items(), default=ONE_OF_EACH_FAULT)
)
def test_a_fault_beside_it_is_found(env: type[Environment[Any]], check: str) -> None:
    result = asked(planted.made(env), check)
    assert result.status == "invalid", result.message


def test_an_environment_that_was_given_more_than_its_config_is_not_built_again() -> None:
    result = asked(planted.Multiplied(factor=3), "task.pure")
    assert result.status == "valid", result.message
    assert "new environment" not in result.message


def test_a_task_that_fails_by_a_variable_is_not_said_to_have_another_prompt_alone() -> None:
    message = asked(planted.FailsByAVariable(), "task.process").message
    assert message.startswith("tasks have other prompts, or fail, if the environment variable")


def test_what_a_reply_opens_is_not_said_to_be_opened_by_the_verifier() -> None:
    message = asked(planted.made(planted.OpensInReplies), "safety.eval").message
    assert message.startswith("a verdict or a reply opened a file"), message


def test_files_are_told_by_how_often_they_were_changed() -> None:
    result = asked(planted.made(planted.DesksBesideOthers), "episode.files")
    assert "times one was emptied or replaced, and nothing passed" in result.message


@pytest.mark.slow
def test_tasks_that_take_seconds_leave_time_for_what_follows_the_variables() -> None:
    result = asked(planted.SlowBehindVariables(), "task.process")
    assert result.status == "valid", result.message
