"""The kit plays episodes, and finds what is planted in them."""

from __future__ import annotations

from functools import cache
from typing import Any

import planted_episodes as planted
import pytest
from planted_dialogues import Sum

from grpo_core import Environment
from grpo_core.kit.result import CheckResult, catalogue

from .kit_runs import checked

OF_EPISODES = [check for check in catalogue() if check.startswith("episode.")]


@cache
def results(env: type[Environment[Any]], *only: str) -> dict[str, CheckResult]:
    return {result.check: result for result in checked(planted.made(env), *only).results}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("faulty", "check"), planted.FAULTS.items())
def test_a_fault_of_an_episode_is_found_by_its_check_where_the_sound_twin_is_valid(
    faulty: type[Environment[Any]], check: str
) -> None:
    found = results(faulty, check)[check]
    assert found.status == "invalid", found.message
    sound = results(planted.Hunts, check)[check]
    assert sound.status == "valid", sound.message


@pytest.mark.slow
@pytest.mark.parametrize("env", planted.SOUND)
def test_honest_episodes_have_no_fault(env: type[Environment[Any]]) -> None:
    found = results(env, "verdict", "reply", "episode", "floor.empty", "floor.cheats")
    assert not [result for result in found.values() if result.status == "invalid"]


@pytest.mark.slow
def test_an_episode_that_cannot_be_replayed_is_judged_while_it_lives() -> None:
    found = results(planted.NotReplayable, "verdict", "episode", "reply.echo", "floor.empty")
    for check in ("verdict.reference", "floor.empty", "episode.repeat", "episode.talk"):
        assert found[check].status == "valid", found[check].message
    for check in ("episode.replay", "episode.apart", "verdict.repeat", "verdict.process"):
        assert found[check].status == "not_checked"
        assert "does not declare replayable = True" in found[check].message


def test_attempts_without_episodes_are_not_asked() -> None:
    found = {result.check: result.message for result in checked(Sum(), "episode", tasks=2).results}
    assert {found[check] for check in OF_EPISODES} == {"its attempts are no episodes"}
