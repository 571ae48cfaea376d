"""Checks of verdicts on hundreds of tasks, for what goes wrong in one of fifty.

The second process judges them, which is fast; what looks wrong there is judged again as a run does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from grpo_core import Verdict
from grpo_core.words import shorten
from grpo_kit.answers.ordinary import ordinary_attempts
from grpo_kit.answers.verdicts import (
    check_form,
    check_reference,
    contradiction,
)
from grpo_kit.check import check
from grpo_kit.dialogues.scripts import split_turns, with_last_turn
from grpo_kit.process.second_process import SecondProcess
from grpo_kit.process.second_request import wide_attempts
from grpo_kit.result import BrokenPromiseError, NotCheckedError
from grpo_kit.subject import TOLERANCE, Attempt, Subject, describe_verdict, task_label
from grpo_kit.tasks.truths import blank_references

_WORDS = "Let us think about it once more. "
_MANY = (10, 40, 160)
"""How often the words stand before a right answer."""
_CONFIRMED = 3
"""Attempts that look wrong and are judged again."""


@check(
    "verdict.form",
    "fault",
    asks=(
        "Do right and wrong answers get verdicts with every part, finite and in the declared range?"
    ),
    second_process=True,
)
async def check_wide_form(process: SecondProcess, subject: Subject) -> str:
    """Check that right, wrong and empty answers to many tasks get verdicts."""
    message = await check_form(subject)
    wide = await _wide_verdicts(process, subject)
    bad = [attempt for _, attempt, verdict in wide if not verdict.scored]
    found = await _confirmed(subject, bad, lambda verdict: not verdict.scored)
    if found is not None:
        (task, text), verdict = found
        raise BrokenPromiseError(
            f"of {len(wide)} further answers {len(bad)} got no verdict, such as {shorten(text)}, "
            f"which {describe_verdict(verdict)} at {task_label(task)}; any text must get a verdict"
        )
    return message + _more(wide)


@check(
    "verdict.reference",
    "fault",
    asks="Does the environment's own reference pass, and is it not empty?",
    second_process=True,
)
async def check_wide_reference(process: SecondProcess, subject: Subject) -> str:
    """Check that the references of many tasks pass, and are not empty."""
    message = await check_reference(subject)
    if empty_ones := blank_references(subject):
        task, text = empty_ones[0]
        raise BrokenPromiseError(
            f"{len(empty_ones)} of {len(subject.answered)} references are empty, such as "
            f"{shorten(text)} of {task_label(task)}; leave tasks without a truth out"
        )
    wide = await _wide_verdicts(process, subject)
    low, top = subject.env.reward_range
    least = low if subject.env.open_ended else top

    def fails(verdict: Verdict) -> bool:
        return not verdict.scored or not verdict.passed or verdict.total < least - TOLERANCE

    references = [(attempt, verdict) for kind, attempt, verdict in wide if kind == "reference"]
    bad = [attempt for attempt, verdict in references if fails(verdict)]
    found = await _confirmed(subject, bad, fails)
    if found is not None:
        (task, text), verdict = found
        raise BrokenPromiseError(
            f"{len(bad)} of {len(references)} further references do not pass, such as "
            f"{shorten(text)} of {task.key}, which {describe_verdict(verdict)}"
        )
    empty = subject.answers.form.before + subject.answers.form.after
    blank = [
        (task, text)
        for (task, text), verdict in references
        if not text.strip() or text.strip() == empty.strip() or verdict.answer == ""
    ]
    if blank:
        raise BrokenPromiseError(
            f"{len(blank)} of {len(references)} further references are empty, such as "
            f"{shorten(blank[0][1])} of {task_label(blank[0][0])}; leave tasks without a truth out"
        )
    passing = [attempt for kind, attempt, verdict in wide if kind == "empty" and verdict.passed]
    found = await _confirmed(subject, passing, lambda verdict: verdict.passed)
    if found is not None:
        (task, text), verdict = found
        raise BrokenPromiseError(
            f"an empty answer, {shorten(text)}, passes {len(passing)} of {len(references)} further "
            f"tasks, such as {task_label(task)}; their truth may be empty: leave such tasks out"
        )
    return message + _more(references)


@check(
    "verdict.passed",
    "fault",
    asks=(
        "Does passed agree with the reward: not true at the floor, nor false at the top, "
        "unless it is open-ended?"
    ),
    second_process=True,
)
async def check_wide_passed(process: SecondProcess, subject: Subject) -> str:
    """Check that `passed` agrees with the reward."""
    attempts = [*ordinary_attempts(subject), *_behind_many_words(subject)]
    verdicts = await subject.verdicts(attempts)
    judged = [
        *zip(attempts, verdicts, strict=True),
        *zip(subject.answered, subject.reference_verdicts, strict=False),
    ]
    for (task, text), verdict in judged:
        if problem := contradiction(subject.env, verdict):
            raise BrokenPromiseError(
                f"the answer {shorten(text)} {describe_verdict(verdict)} at {task_label(task)}; "
                f"{problem}"
            )
    wide = await _wide_verdicts(process, subject)
    bad = [attempt for _, attempt, verdict in wide if contradiction(subject.env, verdict)]
    found = await _confirmed(
        subject, bad, lambda verdict: bool(contradiction(subject.env, verdict))
    )
    if found is not None:
        (task, text), verdict = found
        raise BrokenPromiseError(
            f"{len(bad)} of {len(wide)} further answers, such as {shorten(text)}, "
            f"{describe_verdict(verdict)} at {task_label(task)}; "
            f"{contradiction(subject.env, verdict)}"
        )
    return f"passed agrees with the reward for {len(judged)} right and wrong answers{_more(wide)}"


def _behind_many_words(subject: Subject) -> list[Attempt]:
    """Return right answers behind long texts, which some environments charge for."""
    return [
        (task, with_last_turn(reference, f"{_WORDS * count}\n{split_turns(reference)[-1]}"))
        for task, reference in subject.answered[:1]
        for count in _MANY
    ]


def _more(wide: list[Any]) -> str:
    """Return how many further answers were judged, for a message."""
    return f", and for {len(wide)} answers to further tasks" if wide else ""


async def _wide_verdicts(
    process: SecondProcess, subject: Subject
) -> list[tuple[str, Attempt, Verdict]]:
    """Return what the second process says of the wide sample; nothing where it could not be asked.

    Each is the kind of the answer ("reference", "other" or "empty"), the attempt and its verdict.
    """
    try:
        verdicts = (await process.report()).get("wide", [])
    except NotCheckedError:
        return []
    except BrokenPromiseError:
        process.forget()  # another check, whose question it is, tells it
        return []
    attempts = wide_attempts(subject)
    return [
        (kind, attempt, _verdict(told))
        for (kind, attempt), told in zip(attempts, verdicts, strict=False)
    ]


def _verdict(told: Any) -> Verdict:
    """Return the verdict that the process reported."""
    if isinstance(told, str):
        return Verdict.failed(told)
    return Verdict.from_json({**told, "metrics": {}, "detail": {}})


async def _confirmed(
    subject: Subject, attempts: list[Attempt], bad: Callable[[Verdict], bool]
) -> tuple[Attempt, Verdict] | None:
    """Return the first attempt whose verdict in a run is bad as well, with the verdict."""
    chosen = attempts[:_CONFIRMED]
    verdicts = await subject.verdicts(chosen) if chosen else []
    for attempt, verdict in zip(chosen, verdicts, strict=True):
        if bad(verdict):
            return attempt, verdict
    return None
