"""The kit finds verifiers that accept too much, leaves sound ones alone, and shows one fault as one line."""

import json
import operator
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import faults_answers
import faults_environment
import faults_spelling
import faults_tasks
import faults_verdicts
import planted
import pytest
from faults_tasks import SortsThreeOfTwenty

from grpo_alarms.canaries import NEVER, Canary, judged_canaries
from grpo_core import Environment, Reward, Rollout, Task, TaskKey, Verdict
from grpo_kit import asking

from .distributions import grpo, install_toy
from .kit_runs import checked, problems


@pytest.mark.parametrize(
    "declared",
    [
        {"waived": {"floor.near": " "}},
        {"waived": {"floor.naer": "the ruler is coarse"}},
        {"waived": {"task.made": "no"}},
        {"tolerance": 1.5},
        {"answer_at": "middle"},
    ],
    ids=str,
)
def test_a_declaration_that_makes_no_sense_is_a_fault(declared: dict[str, Any]) -> None:
    env = type("Declares", (planted.Sum,), declared)()
    assert problems(checked(env, "declared.contract")) == {"declared.contract"}


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (
            {"max_new_token": 8, "need": frozenset()},
            "max_new_token (did you mean max_new_tokens?), need",
        ),
        ({"part": {}, "cheat": lambda self, task: ("x",)}, "part (did you mean parts?), cheat"),
        ({"_need": 1, "words": ("a",), "splits": 2}, ""),
    ],
)
def test_a_misspelt_declaration_is_a_warning(names: dict[str, Any], told: str) -> None:
    env = type("Misspelt", (planted.Sum,), names)()
    (found,) = checked(env, "declared.names").results
    assert (found.status, found.severity) == ("invalid" if told else "valid", "warning")
    assert told in found.message


class SharePaid(SortsThreeOfTwenty):
    """Pays the share of words in their places, as the front page does; the run's alarms allow it, too."""

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        words, right = rollout.text.split(), task.data.split()
        share = sum(map(operator.eq, words, right)) / max(len(words), len(right))
        return Verdict({"exact": Reward(share)}, passed=share == 1, answer=rollout.text.strip())


class PrefixPaid(SharePaid):
    """Pays in full for the right words with anything behind them, and calls it no pass."""

    def verify(self, task: Task[Any], rollout: Rollout) -> Verdict:
        verdict = super().verify(task, rollout)
        full = rollout.text.strip().startswith(task.data)
        return replace(verdict, rewards={"exact": Reward(float(full))}) if full else verdict


@pytest.mark.parametrize("env", [SharePaid(), PrefixPaid()], ids=["a share", "a prefix"])
def test_checks_and_alarms_agree_on_what_is_paid_beside_the_right_answer(env: Any) -> None:
    is_hole = isinstance(env, PrefixPaid)
    (found,) = checked(env, "floor.listed").results
    assert found.status == ("invalid" if is_hole else "valid"), found
    assert ('set answer_at = "start"' in found.message) == is_hole
    task, other = (env.task(TaskKey("sorts", "train", index)) for index in range(2))
    for place, text in (
        ("first", f"{task.data} {other.data}"),
        ("last", f"{other.data} {task.data}"),
    ):
        canary = Canary(f"the right answer {place}", task, text, NEVER, right_at=place)
        verdict = env.verify(task, Rollout.of(text))
        (judged,) = judged_canaries([canary], [verdict], best=1.0, floor=0.0)
        assert judged.is_paid == (is_hole and place == "first")


@pytest.mark.slow
@pytest.mark.parametrize("sound", [planted.Metres, planted.WithoutMarksAsDeclared])
def test_a_sound_environment_that_looks_odd_has_no_fault(sound: type[Environment[Any]]) -> None:
    only = ("declared", "verdict", "floor", "safety.eval")
    report = checked(sound(), *only, tasks=20)
    assert not report.problems, str(report)
    assert not report.warnings, str(report)


WAIVING = "waived = {'task.split': 'the toy is so small'}\n    def task(self, key):"


@pytest.mark.slow
def test_command_json_junit_and_card_show_what_is_waived(site: Path) -> None:
    install_toy(site)
    source = site / "toy_environment.py"
    source.write_text(source.read_text().replace("def task(self, key):", WAIVING))
    result = grpo("env", "check", "toy", "--only", "task", "--json", "--junit", "report.xml")
    found = {each["check"]: each for each in json.loads(result.stdout)["results"]}
    assert found["task.split"]["status"] == "waived"
    assert found["task.split"]["message"] == "the toy is so small"
    (case,) = ElementTree.parse("report.xml").getroot().findall("testcase[@name='task.split']")
    skipped = case.find("skipped")
    assert skipped is not None
    assert skipped.get("message") == "waived: the toy is so small"
    text = grpo("env", "check", "toy", "--only", "task").stdout
    assert "1 waived" in text
    assert re.search(r"waived +task\.split +the toy is so small", text)
    for options in ((), ("--json",), ("--markdown",)):
        assert "the toy is so small" in grpo("env", "card", "toy", "--tasks", "0", *options).stdout


@pytest.mark.slow
def test_one_fault_is_one_line_and_what_follows_from_it_says_so() -> None:
    report = checked(faults_tasks.ShufflesGlobally(), isolation="auto")
    assert [result.check for result in report.problems] == ["task.random"]
    assert len(report.consequences) >= 10
    assert {result.caused_by for result in report.consequences} == {"task.random"}
    assert "1 faults, 0 warnings (" in report.counts
    assert "follows from task.random" in str(report)


CAUSES = {
    faults_verdicts.WeightsWithoutEnd: "declared.contract",
    faults_environment.OptionsFromASet: "task.process",
    faults_environment.NamesTheSecond: "task.pure",
    faults_tasks.CacheForgetsTheSplit: "task.split",
    faults_verdicts.NaNForWrong: "verdict.form",
    faults_spelling.IntOfAnything: "floor.junk",
    faults_answers.SilenceIsPolite: "floor.empty",
    faults_answers.PaysForLength: "floor.junk",
    faults_answers.FoundAnywhere: "floor.listed",
    faults_answers.DigitsOfTheBlock: "floor.suffix",
    faults_answers.AnyNumberWillDo: "floor.other",
}
"""Faults that several checks find, with the one that names the cause."""


@pytest.mark.slow
@pytest.mark.parametrize(("faulty", "cause"), CAUSES.items())
def test_the_check_that_names_the_cause_is_the_one_that_counts(
    faulty: type[Environment[Any]], cause: str
) -> None:
    report = checked(faulty(), "declared", "task", "verdict", "floor")
    assert {result.check for result in report.problems} == {cause}, str(report)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("faulty", "status"),
    [(faults_spelling.IntOfAnything, "valid"), (faults_verdicts.WeightsWithoutEnd, "not_checked")],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_an_answer_that_no_process_can_judge_is_no_difference_between_processes(
    faulty: type[Environment[Any]], status: str
) -> None:
    found = checked(faulty(), "verdict.process").results[-1]
    assert (found.check, found.status) == ("verdict.process", status), found.message


@pytest.mark.slow
def test_two_faults_are_two_lines() -> None:
    report = checked(planted.TwoFaults())
    assert {result.check for result in report.problems} == {"task.split", "floor.near"}, str(report)


def test_an_environment_with_services_says_first_what_was_not_asked(site: Path) -> None:
    result = grpo("env", "check", "fillin", "--only", "floor.near", "--only", "floor.code")
    first, *_ = result.stdout.splitlines()
    assert "checks were not asked of this environment, which" in first
    as_json = grpo("env", "check", "fillin", "--only", "floor.code", "--json").stdout
    notice = json.loads(as_json)["notice"]
    assert "needs a judge" in notice
    assert not checked(planted.Sum(), "floor.code").notice


@pytest.mark.slow
def test_a_slow_check_says_what_took_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "_LONG_SECONDS", 0.0)
    junk, process = checked(planted.Sum(), "floor.junk", "task.process").results[::-1]
    assert "verdicts, " in junk.message
    assert "took" in process.message


@pytest.mark.parametrize(
    ("faulty", "check", "said"),
    [
        (faults_verdicts.AsyncByMistake, "declared.contract", "name it averify, or remove `async`"),
        (planted.ForgottenAsync, "verdict.form", "write `async def averify`"),
    ],
)
def test_a_forgotten_or_needless_async_is_one_fault_and_is_named(
    faulty: type[Environment[Any]], check: str, said: str
) -> None:
    report = checked(faulty(), "declared", "verdict", "floor")
    assert [result.check for result in report.problems] == [check], str(report)
    assert said in report.problems[0].message
