"""The kit passes honest designs beside what its checks look for, and still finds the faults there."""

from __future__ import annotations

from typing import Any

import planted_neighbours as planted
import pytest

from grpo_core import Environment
from grpo_core.kit.result import CheckResult

from .kit_runs import result_of
from .sampled import some_of

ONE_OF_EACH_HONEST = (
    planted.HelperThatEnds,
    planted.ShelvesBesideOthers,
    planted.CopiesAsTold,
)
ONE_OF_EACH_FAULT = (planted.HelperThatStays, planted.HasASecretBackup)


def asked(env: type[Environment[Any]], check: str) -> CheckResult:
    return result_of(planted.made(env), check)


@pytest.mark.parametrize(
    ("env", "check"), some_of(planted.HONEST.items(), default=ONE_OF_EACH_HONEST)
)
def test_an_honest_design_is_valid(env: type[Environment[Any]], check: str) -> None:
    result = asked(env, check)
    assert result.status == "valid", result.message


@pytest.mark.parametrize(
    ("env", "check"), some_of(planted.FAULTS.items(), default=ONE_OF_EACH_FAULT)
)
def test_a_fault_beside_it_is_found(env: type[Environment[Any]], check: str) -> None:
    result = asked(env, check)
    assert result.status == "invalid", result.message


def test_an_environment_that_was_given_more_than_its_config_is_not_built_again() -> None:
    result = result_of(planted.Multiplied(factor=3), "task.pure")
    assert result.status == "valid", result.message
    assert "new environment" not in result.message


def test_files_are_told_by_how_often_they_were_changed() -> None:
    result = asked(planted.ShelvesBesideOthers, "episode.files")
    assert "times one was emptied or replaced, and nothing passed" in result.message
