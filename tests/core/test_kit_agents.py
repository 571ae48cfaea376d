"""The kit plays every attempt to agents, and finds what is planted in them."""

from typing import Any

import planted_agents as planted
import pytest

from grpo_core import Environment
from grpo_core.verify.examining import CheckResult
from grpo_kit.run import catalogue

from .kit_runs import results

OF_AGENTS = [check for check in catalogue() if check.startswith("agent.")]


def found_in(env: type[Environment[Any]], *only: str) -> dict[str, CheckResult]:
    return results(env, *only, tasks=6)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("faulty", "check"), planted.FAULTS.items())
def test_a_fault_of_an_agent_is_found_by_its_check_where_the_sound_twin_is_valid(
    faulty: type[Environment[Any]], check: str
) -> None:
    found = found_in(faulty, check)[check]
    assert found.status == "invalid", found.message
    sound = found_in(planted.Sums, check)[check]
    assert sound.status == "valid", sound.message


@pytest.mark.slow
def test_a_program_is_an_agent_that_is_cut_off_and_runs_again() -> None:
    found = found_in(planted.Commands, "agent.repeat", "agent.cut_off")
    assert {found[check].status for check in ("agent.repeat", "agent.cut_off")} == {"valid"}


@pytest.mark.slow
@pytest.mark.parametrize("env", planted.SOUND)
def test_honest_agents_have_no_fault(env: type[Environment[Any]]) -> None:
    found = found_in(env, "verdict", "agent", "floor.empty", "floor.cheats", "safety")
    assert not [result for result in found.values() if result.status == "invalid"]
    assert {found[check].status for check in OF_AGENTS} <= {"valid", "not_checked"}
    for check in ("agent.talk", "agent.close", "verdict.process", "floor.cheats", "safety.files"):
        assert found[check].status == "valid", found[check].message
