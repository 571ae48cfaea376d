"""Checks that another process, in other surroundings, makes the same tasks and verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grpo_core import Task, Verdict
from grpo_core.api.calls import prompt_digest
from grpo_core.words import shorten
from grpo_kit.answers.ordinary import ordinary_attempts
from grpo_kit.answers.verdicts import comparable_fields
from grpo_kit.check import check
from grpo_kit.process.second_process import SecondProcess
from grpo_kit.process.second_request import compared_tasks
from grpo_kit.process.surroundings import SURROUNDINGS
from grpo_kit.result import BrokenPromiseError, NotCheckedError
from grpo_kit.subject import Subject, describe_verdict, task_label


@check(
    "task.process",
    "fault",
    asks=(
        "Does another process make the same tasks, in other surroundings (date, variables, "
        "locale, home, ...)?"
    ),
    second_process=True,
)
async def check_same_tasks(process: SecondProcess, subject: Subject) -> str:
    """Check that a second process makes the same prompts and references."""
    report = await process.report(verdicts=False)
    # the process reports as many tasks as it had time for
    for task, reported in zip(compared_tasks(subject), report["prompts"], strict=False):
        if isinstance(reported, Mapping):
            where = await process.culprit([task], [], lambda told: told["prompts"])
            raise BrokenPromiseError(
                f"{task_label(task)} cannot be made ({reported['error']}) {where}"
            )
        if prompt_digest(task) != reported:
            where = await process.culprit([task], [], lambda told: told["prompts"])
            raise BrokenPromiseError(f"{task_label(task)} has another prompt {where}")
    known = _known_references(subject)
    for task, reported in zip(compared_tasks(subject), report["references"], strict=False):
        if task.key in known and _as_json(known[task.key]) != reported:
            where = await process.culprit([task], [], lambda told: told["references"])
            raise BrokenPromiseError(
                f"the reference of {task_label(task)} is {shorten(str(known[task.key]))}, and "
                f"{shorten(_shown(reported))} {where}"
            )
    if setting := report["variable"]["task"]:
        raise BrokenPromiseError(_with_variable("tasks have other prompts, or fail,", setting))
    return (
        f"{len(report['prompts'])} tasks are the same in another process, with another "
        f"{process.changed}"
    )


def _with_variable(what: str, setting: str) -> str:
    """Return that something depends on an environment variable; `setting` is as in SEED=7."""
    name, _, value = setting.partition("=")
    return (
        f"{what} if the environment variable {name}, which is read, is {value}; "
        f"{SURROUNDINGS['environment variables']}"
    )


def _known_references(subject: Subject) -> dict[Any, Any]:
    """Return the references that this process has, by the key of their task."""
    few = zip(subject.tasks, subject.references, strict=False)
    return {task.key: text for task, text in [*subject.wide.answered, *few]}


def _as_json(reference: Any) -> Any:
    """Return a reference as it comes from the other process."""
    return reference if reference is None or isinstance(reference, str) else list(reference)


def _shown(reported: Any) -> str:
    """Return a reported reference, or why there is none, as text."""
    return str(reported["error"]) if isinstance(reported, Mapping) else str(reported)


@check(
    "verdict.process",
    "fault",
    asks=(
        "Does an attempt get the same verdict in another process, in other surroundings "
        "(date, variables, locale, home, ...)?"
    ),
    second_process=True,
)
async def check_same_verdicts(process: SecondProcess, subject: Subject) -> str:
    """Check that a second process gives the same verdicts."""
    subject.require_same_verdicts()
    report = await process.report()
    verdicts = report["verdicts"]
    # the process reports as many verdicts as it had time for
    attempts = ordinary_attempts(subject)[::-1][: len(verdicts)]
    local_results = await subject.verdicts(attempts)
    if attempts and not any(result.scored for result in local_results):
        raise NotCheckedError("none of the attempts could be judged in this process")
    for (task, text), local_result, remote_result in zip(
        attempts, local_results, verdicts, strict=False
    ):
        told = _difference(local_result, remote_result)
        if told:
            where = await _culprit(process, task, text)
            raise BrokenPromiseError(
                f"the answer {shorten(text)} at {task_label(task)} "
                f"{describe_verdict(local_result)}, and {told} {where}"
            )
    if setting := report["variable"]["verdict"]:
        raise BrokenPromiseError(_with_variable("attempts get other verdicts, or none,", setting))
    return (
        f"{len(verdicts)} attempts got the same verdicts in another process, with another "
        f"{process.changed}"
    )


def _difference(local_result: Verdict, remote_result: Any) -> str:
    """Return what became of an attempt in the other process, or "" if nothing else.

    An attempt that could not be judged in this process either is the subject of verdict.form.
    """
    if not local_result.scored:
        return ""
    if isinstance(remote_result, str):
        return f"failed ({remote_result})"
    elsewhere = Verdict.from_json({**remote_result, "metrics": {}, "detail": {}})
    if comparable_fields(local_result) == comparable_fields(elsewhere):
        return ""
    same_outcome = (local_result.rewards, local_result.passed) == (
        elsewhere.rewards,
        elsewhere.passed,
    )
    if same_outcome:
        return f"was taken as {elsewhere.answer!r} instead of {local_result.answer!r}"
    told = describe_verdict(elsewhere)
    return told if told != describe_verdict(local_result) else f"{told}, with other rewards,"


async def _culprit(process: SecondProcess, task: Task[Any], text: str) -> str:
    """Return what the verdict on an attempt depends on."""
    return await process.culprit([task], [(task, text)], lambda report: report["verdicts"])
