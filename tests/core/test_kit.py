"""The kit finds every planted fault by itself, and passes the sound environment that the faults were planted in."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from grpo_core import ConfigError, Environment, Outcome, Program, Services
from grpo_core.kit.result import catalogue
from grpo_core.kit.run import QUESTIONS, WITNESSED
from grpo_core.testing import EnvironmentConformance, FakeJudge, FakeSandbox, Report, check_environment

from .distributions import grpo, install_toy

sys.path.insert(0, str(Path(__file__).parent))

import planted

COUNT = 8


def problems(report: Report) -> set[str]:
    return {result.check for result in report.results if result.status == "invalid"}


def checked(env: Environment[Any], *only: str) -> Report:
    return check_environment(env, tasks=COUNT, only=only)


@pytest.fixture(scope="module")
def sound() -> Report:
    return checked(planted.Sum())


def test_the_sound_twin_has_no_fault(sound: Report) -> None:
    assert not problems(sound), str(sound)
    assert {r.check for r in sound.results if r.status == "not_checked"} == {
        "verdict.outage",
        "floor.canaries",
        "floor.code",
        "floor.judge",
    }


def test_enough_faults_are_planted_and_each_check_has_one() -> None:
    assert len(planted.FAULTS) >= 25
    without = {"task.made", "floor.echo", "verdict.outage", "floor.code", "floor.judge"}  # these have tests of their own below
    assert set(planted.FAULTS.values()) | without == set(catalogue())


@pytest.mark.parametrize(("faulty", "check"), planted.FAULTS.items(), ids=lambda value: getattr(value, "__name__", value))
def test_a_planted_fault_is_found_by_its_check_where_the_sound_twin_is_valid(
    faulty: type[Environment[Any]], check: str, sound: Report
) -> None:
    (found,) = checked(faulty(), check).results
    assert found.status == "invalid", found.message
    assert f'only=["{check}"]' in found.reproduce
    if check != "floor.canaries":  # the sound one has none
        assert next(r for r in sound.results if r.check == check).status == "valid"


def test_a_verifier_that_pays_for_the_prompt_is_found() -> None:
    assert problems(checked(planted.Echoing(), "floor.echo")) == {"floor.echo"}


def test_an_environment_without_tasks_is_told_in_its_own_words_and_the_rest_is_not_checked() -> None:
    report = check_environment(planted.Taskless())
    assert problems(report) == {"task.made"}
    assert "the data set is not there" in str(report)
    assert {result.status for result in report.results if result.check.startswith("floor")} == {"not_checked"}


def adding(program: Program, arguments: Any) -> Outcome:
    """Stands in for a sandbox: programs that add a constant, and some that cheat."""
    if len(program.source) > 10_000:
        return Outcome("exception", error="too long")
    try:
        body = ast.parse(program.source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Outcome("exception", error="no program")
    found = [node for node in body if isinstance(node, ast.FunctionDef)]
    if "return True" in program.source:
        return Outcome("ok", value=True)
    if len(found) != 1 or not isinstance(found[0].body[0], ast.Return) or not isinstance(found[0].body[0].value, ast.BinOp):
        return Outcome("no_result") if found else Outcome("exception", error="no function")
    added = found[0].body[0].value.right
    return Outcome("ok", value=arguments[0] + added.value) if isinstance(added, ast.Constant) else Outcome("exception")


def test_an_environment_that_turns_an_outage_into_a_reward_is_found_and_its_sound_twin_is_not() -> None:
    services = Services({"default": FakeSandbox(adding)})
    assert problems(checked(planted.Coded(None, services))) == set()
    assert problems(checked(planted.OutageIsZero(None, services), "verdict.outage")) == {"verdict.outage"}


def test_programs_that_solve_nothing_are_tried_on_environments_that_run_programs() -> None:
    services = Services({"default": FakeSandbox(adding)})
    assert problems(checked(planted.TrustsEquality(None, services), "floor.code")) == {"floor.code"}
    assert not problems(checked(planted.Coded(None, services), "floor.code"))


def test_a_judge_that_obeys_the_text_is_found_and_one_that_does_not_passes() -> None:
    assert problems(checked(planted.Praised(None, Services(judges={"default": FakeJudge(planted.obedient_judge)})))) == {"floor.judge"}
    assert not problems(checked(planted.Praised(None, Services(judges={"default": FakeJudge(planted.honest_judge)}))))


def test_services_that_are_down_leave_verdicts_unchecked_instead_of_blaming_the_environment() -> None:
    down = Services({"default": FakeSandbox(lambda program, one: Outcome("infra_error", error="no daemon"))})
    report = checked(planted.Coded(None, down), "verdict", "floor")
    assert problems(report) == set()
    assert {result.status for result in report.results if result.check in ("verdict.reference", "floor.junk")} == {"not_checked"}
    assert "no daemon" in str(report)


def test_every_check_of_the_data_file_is_carried_out_and_no_other() -> None:
    assert set(catalogue()) == {*QUESTIONS, *WITNESSED}
    assert {check["severity"] for check in catalogue().values()} == {"fault", "warning"}
    assert all(check["asks"].endswith("?") for check in catalogue().values())


def test_only_names_checks_or_groups_and_a_typo_is_told() -> None:
    assert {r.check for r in checked(planted.Sum(), "floor.near", "cost.time").results} == {"floor.near", "cost.time"}
    assert all(r.check.startswith("task.") for r in checked(planted.Sum(), "task").results)
    with pytest.raises(ConfigError, match=r"'floor.naer' is no check.*floor.near"):
        checked(planted.Sum(), "floor.naer")


def test_a_warning_is_reported_and_is_no_fault() -> None:
    report = checked(planted.LeavesFiles(), "safety.files")
    assert [r.check for r in report.warnings] == ["safety.files"]
    assert report.problems == ()


def test_the_command_prints_a_reproduction_line_and_exits_with_1_for_faults(site: Path, tmp_path: Path) -> None:
    """The toy asks for squares, the same at every level, and in both splits."""
    install_toy(site)
    junit = tmp_path / "report.xml"
    result = grpo("env", "check", "toy", "--seed", "7", "--json", "--junit", str(junit))
    assert result.exit_code == 1, result.output
    found = {each["check"]: each for each in json.loads(result.stdout)["results"]}
    assert found["task.split"]["status"] == "invalid"
    assert found["task.split"]["reproduce"] == "grpo env check toy --only task.split --seed 7"
    assert found["verdict.reference"]["status"] == "valid"
    suite = ElementTree.parse(junit).getroot()
    assert {case.get("name") for case in suite if case.find("failure") is not None} >= {"task.split"}
    assert any(case.find("skipped") is not None for case in suite)
    again = grpo("env", "check", "toy", "--only", "task.pure")
    assert again.exit_code == 0, again.output


def test_a_check_that_does_not_exist_is_one_line(site: Path) -> None:
    install_toy(site)
    result = grpo("env", "check", "toy", "--only", "flor")
    assert result.exit_code == 2
    assert "'flor' is no check; did you mean 'floor'?" in result.stderr


def test_one_inherited_class_makes_a_test_of_each_check(tmp_path: Path) -> None:
    source = (
        f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\nimport planted\n"
        "from grpo_core.testing import EnvironmentConformance\n\n\n"
        "class TestSound(EnvironmentConformance):\n    environment = planted.Sum\n    tasks = 8\n\n\n"
        "class TestFaulty(EnvironmentConformance):\n    environment = planted.Tolerance\n    tasks = 8\n"
    )
    (tmp_path / "test_it.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rsf", "-k", "near or code or TestSound", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert "FAILED test_it.py::TestFaulty::test_conformance[floor.near]" in done.stdout, done.stdout
    assert done.stdout.count("FAILED") == 1, done.stdout
    assert "it runs no programs" in done.stdout
    assert EnvironmentConformance.tasks == 20
