"""The kit finds planted faults by itself, and passes the sound environment that the faults were planted in."""

import contextlib
import dataclasses
import json
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import bases
import planted
import planted_neighbours as neighbours
import pytest
from bases import ListedProducts
from faults_effects import KeepsThreeKilobytes
from faults_verdicts import ObeyedOrders

from grpo_core import (
    Environment,
    Judge,
    Judgement,
    JudgeRequest,
    Outcome,
    Program,
    Rollout,
    Services,
    Task,
    TaskKey,
    Verdict,
)
from grpo_core.cli import progress
from grpo_core.testing import (
    EnvironmentConformance,
    FakeJudge,
    FakeSandbox,
    Report,
    assert_environment,
    check_environment,
)
from grpo_kit.run import catalogue

from ..commandline import words
from .distributions import TOY_ENVIRONMENT, grpo, install_toy, pytest_apart
from .kit_runs import COUNT, checked, isolation_for, problems, result_of
from .processes import is_alive, wait_until


@pytest.fixture(scope="module")
def sound() -> Report:
    return checked(planted.Sum(), isolation="auto")


def test_the_sound_twin_has_no_fault(sound: Report) -> None:
    assert not problems(sound), str(sound)
    of_dialogues = {
        check
        for check in catalogue()
        if check.startswith(("reply.", "tool.", "episode.", "agent."))
    }
    assert {r.check for r in sound.results if r.status == "not_checked"} - of_dialogues == {
        "verdict.outage",
        "floor.canaries",
        "floor.code",
        "floor.changed",
        "floor.judge",
    }


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("faulty", "check"), (planted.FAULTS | neighbours.FAULTS).items())
def test_a_planted_fault_is_found_by_its_check_where_the_sound_twin_is_valid(
    faulty: type[Environment[Any]], check: str, sound: Report
) -> None:
    found = result_of(faulty(), check, tasks=20, isolation=isolation_for(check))
    assert found.status == "invalid", found.message
    assert f'only=["{check}"]' in found.reproduce
    assert next(r for r in sound.results if r.check == check).status == "valid"


def test_references_without_an_answer_are_a_fault_with_its_cause() -> None:
    report = checked(planted.AllEmptyInTags(), "verdict.reference", "floor")
    assert "separator" not in str(report)
    reference = next(r for r in report.results if r.check == "verdict.reference")
    found = "8 of 8 references are empty, such as '<answer></answer>' of train task 0"
    assert found in reference.message


class EvalOnly(ListedProducts):
    def size(self, split: str) -> int:
        return 50 if split == "eval" else 0


def test_an_environment_without_training_tasks_has_no_check_that_counts_as_passed() -> None:
    report = checked(EvalOnly())
    results = {result.check: (result.status, result.message) for result in report.results}
    assert results.pop("declared.contract")[0] == "valid"
    assert set(results.values()) == {("not_checked", "there are no tasks in the train split")}
    assert report.blind == "there are no tasks in the train split"


def adding(program: Program, arguments: Any) -> Outcome:
    """Stands in for a sandbox: programs that add a constant, and some that cheat."""
    if "return True" in program.source:
        return Outcome("ok", value=True)
    found = re.fullmatch(r"def f\(x\):\n    return x \+ (\d{1,9})\n", program.source)
    if found is None:
        return Outcome("exception", error="no program")
    return Outcome("ok", value=arguments[0] + int(found[1]))


def test_programs_that_solve_nothing_are_tried_on_environments_that_run_programs() -> None:
    services = Services({"default": FakeSandbox(adding)})
    assert problems(checked(planted.TrustsEquality(None, services), "floor.code")) == {"floor.code"}
    sound = checked(planted.Coded(None, services), "verdict", "floor")
    assert problems(sound) == set()
    tried = {result.check: result.status for result in sound.results}
    assert (tried["verdict.outage"], tried["floor.code"]) == ("valid", "valid")


def praised(judge: Judge) -> ObeyedOrders:
    """Return an environment that believes this judge."""
    return ObeyedOrders(None, Services(judges={"default": judge}))


def honest_judge(request: JudgeRequest) -> float:
    return float(request.candidate == request.reference)


def test_services_that_are_down_leave_verdicts_unchecked_instead_of_blaming_the_environment() -> (
    None
):
    down = FakeSandbox(lambda program, one: Outcome("infra_error", error="no daemon"))
    coded = planted.Coded(None, Services({"default": down}))
    report = checked(coded, "verdict.reference", "floor.junk")
    assert {result.status for result in report.results} == {"not_checked"}
    assert "no daemon" in str(report)


def test_a_judge_that_is_down_is_no_fault_of_the_environment() -> None:
    report = checked(praised(NoJudge(honest_judge)), "verdict", "floor")
    assert problems(report) == set()
    assert "the judge 'default' does not work: connection refused" in report.blind
    with pytest.raises(AssertionError, match="connection refused"):
        assert_environment(praised(NoJudge(honest_judge)), tasks=COUNT, only=["verdict"])


class NoJudge(FakeJudge):
    async def judge(self, requests: Sequence[JudgeRequest]) -> Sequence[Judgement]:
        return [Judgement(0.0, error="connection refused") for _ in requests]


class OrdersBreakIt(ObeyedOrders):
    async def averify(self, task: Task[str], rollout: Rollout) -> Verdict:
        if "score" in rollout.text:
            raise ValueError("what is this?")
        return await super().averify(task, rollout)


def test_an_honest_judge_is_no_fault_and_a_text_that_keeps_itself_from_being_judged_is() -> None:
    judge = FakeJudge(honest_judge)
    assert problems(checked(praised(judge), "verdict", "floor")) == set()
    env = OrdersBreakIt(None, Services(judges={"default": judge}))
    assert problems(checked(env, "floor.judge")) == {"floor.judge"}


class Ruleless(Environment[int]):
    """Has no verify."""

    def task(self, key: TaskKey) -> Task[int]:
        return Task(key, "What is 1 + 1?", 2)


@pytest.mark.parametrize(
    ("env", "check", "said"),
    [
        (Ruleless, "declared.contract", "verify"),
        (planted.Taskless, "task.made", "the data set is not there"),
    ],
)
def test_a_fault_that_leaves_nothing_to_look_at_is_told_whatever_was_asked(
    env: type[Environment[Any]], check: str, said: str
) -> None:
    report = checked(env(), "floor")
    assert problems(report) == {check}
    assert said in str(report)
    assert {r.status for r in report.results if r.check != check} == {"not_checked"}
    assert len(report.results) > 10
    everything = {r.check for r in check_environment(env(), tasks=COUNT).results}
    assert everything == set(catalogue())


class Speechless(planted.Sum):
    def reference(self, task: Task[int]) -> str:
        raise KeyError("no answer")


def test_a_reference_that_raises_is_one_fault_and_levels_are_looked_at_without_it() -> None:
    report = checked(Speechless(), "verdict.reference", "task.level")
    assert {result.check: result.status for result in report.results} == {
        "task.level": "valid",
        "verdict.reference": "invalid",
    }


@pytest.mark.slow
def test_a_process_that_the_verifier_leaves_behind_elsewhere_does_not_keep_the_kit_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a session of its own, so on Linux alone it is found, and it is killed there."""
    monkeypatch.setenv(planted.DAEMON_NOTE, str(tmp_path / "pid"))
    started = time.monotonic()
    found = result_of(planted.LeavesDaemons(), "safety.processes")
    assert time.monotonic() - started < 50
    if sys.platform == "linux":
        assert found.status == "valid", found
        assert not is_alive(int((tmp_path / "pid").read_text()))
    else:
        assert found.status == "not_checked", found
        assert "holds its output open" in found.message


def test_a_second_process_that_the_system_ends_is_no_fault_of_the_environment() -> None:
    report = checked(planted.KilledElsewhere(), "safety", "verdict.process")
    assert {(result.status, result.message) for result in report.results} == {
        ("not_checked", "the second process was killed, as happens where memory is short")
    }


def test_why_there_is_no_second_process_is_told_by_each_check_that_needs_it() -> None:
    report = checked(planted.EndsElsewhere(), "safety")
    assert [result.status for result in report.results].count("invalid") == 1
    assert {result.status for result in report.results} == {"invalid", "not_checked"}
    assert {result.message for result in report.results} == {
        "in a process of its own it ended with status 3: no output"
    }


class Short(ListedProducts):
    levels = True

    def size(self, split: str) -> int:
        return 8


@pytest.mark.parametrize(
    ("env", "tasks", "check", "why"),
    [
        (planted.Sum, 3, "floor.near", "fewer than 4 answers"),
        (planted.Sum, 3, "floor.junk", "is checked from 4 tasks"),
        (planted.Sum, 3, "floor.constant", "fewer than 4"),
        (Short, 8, "task.level", "fewer than the 12"),
    ],
)
def test_what_is_told_from_several_tasks_is_not_checked_on_few(
    env: type[Environment[Any]], tasks: int, check: str, why: str
) -> None:
    found = result_of(env(), check, tasks=tasks)
    assert (found.status, why in found.message) == ("not_checked", True), found


class Mirrors(planted.Sum):
    def verify(self, task: Task[int], rollout: Rollout) -> Verdict:
        if "\ud800" in rollout.text or "\x1b" in rollout.text:
            raise ValueError(f"bad answer {rollout.text}")
        return super().verify(task, rollout)


def test_a_message_holds_nothing_that_cannot_be_printed() -> None:
    found = result_of(Mirrors(), "floor.text")
    assert found.status == "invalid"
    assert found.message.isprintable()
    found.message.encode()


def test_every_check_asks_a_question_and_counts_as_a_fault_or_a_warning() -> None:
    assert {check.severity for check in catalogue().values()} == {"fault", "warning"}
    assert [check.name for check in catalogue().values() if not check.asks.endswith("?")] == []


def test_the_command_prints_a_reproduction_line_and_exits_with_1_for_faults(
    site: Path, tmp_path: Path
) -> None:
    """The toy asks for squares, the same at every level, and in both splits."""
    install_toy(site)
    junit = tmp_path / "report.xml"
    few = words("--only task.split --only verdict.reference --only floor.code")
    result = grpo(*words("env check toy --seed 7 --json"), *few, "--junit", str(junit))
    assert result.exit_code == 1, result.output
    found = {each["check"]: each for each in json.loads(result.stdout)["results"]}
    assert found["task.split"]["status"] == "fault"
    assert found["task.split"]["reproduce"] == "grpo env check toy --only task.split --seed 7"
    assert found["verdict.reference"]["status"] == "valid"
    suite = ElementTree.parse(junit).getroot()
    assert {case.get("name") for case in suite if case.find("failure") is not None} >= {
        "task.split"
    }
    assert any(case.find("skipped") is not None for case in suite)
    again = grpo("env", "check", "toy", "--only", "task.pure")
    assert again.exit_code == 0, again.output


def test_settings_and_names_with_braces_and_spaces_come_back_as_they_can_be_pasted(
    site: Path,
) -> None:
    (site / "my envs").mkdir()
    (site / "my envs" / "toy.py").write_text(TOY_ENVIRONMENT)
    setting = 'judges.default={name="x{check}"}'
    asked = ["grpo", "env", "check", "my envs/toy.py:Toy", "--set", setting]
    (found,) = json.loads(grpo(*asked[1:], "--only", "task.split", "--json").stdout)["results"]
    assert shlex.split(found["reproduce"])[: len(asked)] == asked


def test_an_environment_whose_judge_is_missing_does_not_pass(site: Path) -> None:
    result = grpo(*words("env check fillin --only verdict.form"))
    assert result.exit_code == 3, result.output
    assert "nothing is known about its verdicts" in result.stderr


def test_a_report_that_cannot_be_written_is_told_before_the_work_and_settings_that_are_not_read_are_refused(
    site: Path,
) -> None:
    install_toy(site)
    asked = 'open("asked", "w").close()'
    (site / "toy_environment.py").write_text(
        TOY_ENVIRONMENT.replace("def task(self, key):", f"def task(self, key):\n        {asked}")
    )
    result = grpo("env", "check", "toy", "--junit", "/dev/null/report.xml")
    assert (result.exit_code, result.stdout, (site / "asked").exists()) == (2, "", False)
    assert "--junit '/dev/null/report.xml' cannot be written: Not a directory" in result.stderr
    grpo("env", "check", "toy", "--only", "task.split")
    assert (site / "asked").exists()
    (site / "report.xml").write_text("of yesterday")
    result = grpo("env", "check", "toy", "--only", "typo", "--junit", str(site / "report.xml"))
    assert (result.exit_code, (site / "report.xml").exists()) == (2, False)
    result = grpo("env", "check", "toy", "--set", "verify.timeout_seconds=99")
    assert (result.exit_code, "changes settings of env, judges, sandbox" in result.stderr) == (
        2,
        True,
    )


def test_ctrl_c_leaves_no_process_behind(site: Path) -> None:
    install_toy(site)
    (site / "toy_environment.py").write_text(
        TOY_ENVIRONMENT.replace("def verify(self, task, rollout):", SLOW)
    )
    command = [
        sys.executable,
        "-c",
        "from grpo_core.cli import main; main()",
        *words("env check toy --only verdict.process"),
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=site, start_new_session=True
    ) as process:
        try:
            assert wait_until(lambda: bool(witnesses(site)), 60)
            process.send_signal(signal.SIGINT)
            said, _ = process.communicate(timeout=20)
            assert (process.returncode, b"Traceback" in said) == (130, False), said.decode()
            assert wait_until(lambda: not witnesses(site), 60)
        finally:
            process.kill()


SLOW = f"""def verify(self, task, rollout):
        import os, time
        if os.environ.get("PYTHONHASHSEED") == "{planted.SECOND}":
            time.sleep(60)
"""


def witnesses(site: Path) -> list[str]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command, environ = ((folder / name).read_bytes() for name in ("cmdline", "environ"))
            if b"grpo_kit.process.observer" in command and str(site).encode() in environ:
                found.append(folder.name)
    return found


def test_faults_stand_last_and_what_was_not_carried_out_is_one_line(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a pipe, which shows no bar, a line says now and then how far it is."""
    install_toy(site)
    monkeypatch.setattr(progress, "PLAIN_SECONDS", 0.1)
    result = grpo("env", "check", "toy", "--tasks", "4")
    told = [line.split()[0] for line in result.stdout.splitlines() if line[:1].strip()]
    assert told.count("not") == 1
    assert " checks do not apply or could not be made, such as " in " ".join(result.stdout.split())
    assert told[told.index("fault") :].count("valid") == 0
    assert re.search(r"checking: \d+ of \d+ in \d+ s, now \w+\.\w+", result.stderr)
    listed = grpo("env", "check", "toy", "--tasks", "4", "--all", "--only", "reply").stdout
    assert len(re.findall("^not checked", listed, re.MULTILINE)) > 1


class Huge(planted.Sum):
    """Each prompt has 2 MB: no more than a few of them are compared."""

    def task(self, key: TaskKey) -> Task[int]:
        task = super().task(key)
        return dataclasses.replace(task, prompt=f"{'lorem ipsum ' * 170_000}{task.prompt}")


@pytest.mark.slow
def test_prompts_of_two_megabytes_are_checked_within_minutes() -> None:
    started = time.monotonic()
    (found,) = checked(Huge(), "task.split").results
    assert "4 train and 4 eval prompts" in found.message
    assert time.monotonic() - started < 100


def test_a_check_that_does_not_exist_is_one_line(site: Path) -> None:
    install_toy(site)
    result = grpo("env", "check", "toy", "--only", "flor")
    assert result.exit_code == 2
    assert "'flor' is not a check; did you mean 'floor'?" in result.stderr


@pytest.mark.slow
def test_one_inherited_class_makes_a_test_of_each_check(tmp_path: Path) -> None:
    source = (
        f"import sys\nsys.path.insert(0, {str(Path(bases.__file__).parent)!r})\n"
        "from bases import TaggedSum\nfrom faults_answers import WithinOnePercent\n"
        "from grpo_core.testing import EnvironmentConformance\n\n\n"
        "import pytest\n\n\n"
        "class TestSound(EnvironmentConformance):\n    environment = TaggedSum\n    tasks = 8\n\n"
        "    @pytest.mark.parametrize('number', [1, 2])\n    def test_near_something_else(self, number):\n        assert number\n\n\n"
        "class TestFaulty(EnvironmentConformance):\n    environment = WithinOnePercent\n    tasks = 8\n"
    )
    (tmp_path / "test_it.py").write_text(source)
    done = pytest_apart("-rsf", "-k", "near or code or TestSound", cwd=tmp_path)
    assert "FAILED test_it.py::TestFaulty::test_conformance[floor.near]" in done.stdout, done.stdout
    assert done.stdout.count("FAILED") == 1, done.stdout
    assert "it runs no programs" in done.stdout
    assert EnvironmentConformance.tasks == 20


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("honest", "checks"), (planted.SOUND | neighbours.SOUND).items())
def test_an_odd_but_honest_environment_is_not_condemned(
    honest: type[Environment[Any]], checks: Sequence[str]
) -> None:
    report = checked(neighbours.made(honest), *checks, isolation=isolation_for(*checks))
    assert {result.check: result.status for result in report.results} == dict.fromkeys(
        checks, "valid"
    ), str(report)


def test_a_dialogue_may_tell_later_what_its_prompt_leaves_out() -> None:
    found = result_of(planted.HiddenInTheDialogue(), "task.ambiguous")
    assert (found.status, "a later turn" in found.message) == ("not_checked", True)


def test_an_environment_that_was_given_more_than_its_config_is_not_built_again() -> None:
    found = result_of(neighbours.Multiplied(factor=3), "task.pure")
    assert (found.status, "new environment" in found.message) == ("valid", False), found


def test_a_backup_is_a_fault_and_files_are_told_by_how_often_they_were_changed() -> None:
    found = result_of(neighbours.made(neighbours.HasASecretBackup), "episode.files")
    assert found.status == "invalid", found
    found = result_of(neighbours.made(neighbours.ShelvesBesideOthers), "episode.files")
    assert found.status == "valid", found
    assert "times one was emptied or replaced, and nothing passed" in found.message


@pytest.mark.slow
@pytest.mark.parametrize("kind", [planted.TellsItsSurroundings, planted.PaysByItsSurroundings])
@pytest.mark.parametrize("name", planted.SURROUNDINGS)
def test_what_a_task_or_verdict_depends_on_is_named(
    kind: type[Environment[Any]], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kit looks for it by seven processes."""
    monkeypatch.setenv(planted.SETTING, "sunny")  # a worker gets no such variable
    check = "task.process" if kind is planted.TellsItsSurroundings else "verdict.process"
    found = result_of(kind(planted.LooksAt(name)), check)
    assert (found.status, f" {name}; " in f" {found.message}") == ("invalid", True), found.message


@pytest.mark.slow
def test_files_that_are_left_are_a_warning_that_says_how_many_verdicts_were_watched() -> None:
    report = checked(planted.LeavesFewFiles(), "safety.files")
    (warning,) = report.warnings
    assert report.problems == ()
    assert re.match(r"\d{3,} verdicts left 4 files .*answer-1", warning.message)
    tidy = result_of(planted.Sum(), "safety.files").message
    assert re.match(r"\d{3,} verdicts left no file in the working dir.*, .* home", tidy)


@pytest.mark.slow
def test_kept_memory_is_told_with_the_line_that_keeps_it() -> None:
    found = result_of(KeepsThreeKilobytes(), "cost.memory", isolation="auto")
    assert re.search(r"left 3\.\d kB behind; .* faults_effects\.py:\d+", found.message), found
