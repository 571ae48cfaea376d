"""Checks of verdicts.

A verdict must have every part, reward the environment's reference, be repeatable, and be an error
where something failed.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from typing import Any

from grpo_core import Environment, Task, Verdict
from grpo_core.protocol.ties import all_same, reaches
from grpo_core.words import shorten
from grpo_kit.answers.ordinary import backwards, ordinary_attempts, with_other_numbers
from grpo_kit.check import check
from grpo_kit.dialogues.scripts import split_turns, with_last_turn
from grpo_kit.result import BrokenPromiseError, NotCheckedError
from grpo_kit.subject import (
    TOLERANCE,
    Attempt,
    Subject,
    describe_verdict,
    task_label,
)
from grpo_kit.tasks.tasks import are_equal

TIMEOUT_SECONDS = 10.0
"""The timeout of a verdict with data or services that fail."""
_PAST, _PAST_AT_ONCE, _PAST_SECONDS = 600, 50, 0.2
"""How many replies of one kind are judged, in batches, before verdicts are compared; no further
batch is begun after the time."""
_SLOW_VERDICT = 0.02
"""Mean seconds of a verdict, in a worker, from which none are made for the sake of a past."""
_LONG_REPLY = "and so on " * 200
_EXTREME_TASKS = 3
"""Tasks at which answers are tried that are as wrong as can be."""
_FEWEST = 4
"""Fewer answers than this tell nothing by getting one reward."""
_AFTER_A_PAST = 8
"""Attempts that are judged again after each past."""


async def check_form(subject: Subject) -> str:
    """Check that right and wrong answers get verdicts."""
    attempts = ordinary_attempts(subject)
    await subject.scored_verdicts("an ordinary answer", attempts)
    extremes = [] if subject.services else _extremes(subject)
    await subject.must_be_scored("an answer in the right form", extremes)
    count = len(attempts) + len(extremes)
    return f"{count} right and wrong answers got verdicts with every part"


def _extremes(subject: Subject) -> list[Attempt]:
    """Return answers in the right form that are as wrong as can be."""
    attempts = list[Attempt]()
    count = 1 if subject.has_agents else min(_EXTREME_TASKS, subject.small_count)
    for index, (task, reference) in enumerate(subject.answered[:count]):
        answer = subject.answers.bare_answer(index) or subject.answers.last_turns[index]
        for text in dict.fromkeys([backwards(answer), *with_other_numbers(answer)]):
            changed = subject.answers.replace_answer(index, text) or with_last_turn(reference, text)
            attempts.append((task, changed))
    return attempts


async def check_reference(subject: Subject) -> str:
    """Check that each reference passes, with the highest reward unless open-ended."""
    if subject.reference_error:
        raise BrokenPromiseError(subject.reference_error)
    if subject.unavailable:
        raise NotCheckedError(subject.unavailable)
    if not subject.answered:
        raise NotCheckedError(
            "reference() gives no answers; write it, so that the verifier is known to accept what "
            "is right"
        )
    low, top = subject.env.reward_range
    least = low if subject.env.open_ended else top
    reward = "" if subject.env.open_ended else f" with {top:g}"
    for (task, text), verdict in zip(subject.answered, subject.reference_verdicts, strict=True):
        if (turns := len(split_turns(text))) > subject.env.max_turns:
            raise BrokenPromiseError(
                f"the reference of {task.key} has {turns} turns, and max_turns is "
                f"{subject.env.max_turns}; raise max_turns, or give fewer turns"
            )
        if not verdict.scored or not verdict.passed or verdict.total < least - TOLERANCE:
            raise BrokenPromiseError(
                f"the reference {shorten(text)} of {task.key} {describe_verdict(verdict)}; it must "
                f"pass{reward}"
            )
    none = len(subject.tasks) - len(subject.answered)
    without = f"; {none} of {len(subject.tasks)} tasks have none" if none else ""
    return f"{len(subject.answered)} references pass{reward}{without}"


@check("verdict.differs", "warning", asks="Is any answer paid otherwise than the others?")
async def check_differs(subject: Subject) -> str:
    """Check that the references and ordinary answers that are tried do not all get one reward."""
    if subject.unavailable:
        raise NotCheckedError(subject.unavailable)
    judged = [*subject.reference_verdicts, *await subject.verdicts(ordinary_attempts(subject))]
    totals = [verdict.total for verdict in judged if verdict.scored]
    if len(totals) < _FEWEST:
        raise NotCheckedError(f"fewer than {_FEWEST} answers could be judged")
    if all_same(totals):
        right = "references and other answers" if subject.answered else "answers"
        raise BrokenPromiseError(
            f"all {len(totals)} {right} that were tried got the same reward, {totals[0]:g}, so a "
            "run may find nothing to learn from; score an answer that you hold right and a wrong "
            "one with `grpo env score`, and write reference()"
        )
    return f"{len(totals)} answers got {min(totals):g} to {max(totals):g}"


def contradiction(env: Environment[Any], verdict: Verdict) -> str:
    """Return how `passed` contradicts the reward, or "" if it does not."""
    if not verdict.scored:
        return ""
    if verdict.passed and reaches(env.floor, verdict.total):
        return f"an answer that passed must be paid more than the floor {env.floor:g}"
    top = env.reward_range[1]
    if not verdict.passed and not env.open_ended and reaches(verdict.total, top):
        return f"an answer that is paid the most, {top:g}, must pass"
    return ""


@check(
    "verdict.repeat",
    "fault",
    asks=(
        "Does an attempt get the same verdict again, in another order and among other "
        "attempts, and are the task's data unchanged?"
    ),
)
async def check_repeat(subject: Subject) -> str:
    """Check that attempts get the same verdicts again, in another order and other company."""
    subject.require_same_verdicts()
    attempts = ordinary_attempts(subject)
    first, second = await subject.verdicts(attempts), (await subject.verdicts(attempts[::-1]))[::-1]
    # an environment that has judged nothing so far, and meets the wrong replies first
    backwards = attempts[::-1]
    elsewhere = second[::-1] if subject.services else await _verdicts_here(subject, backwards)
    # also the first verdicts of all: a verifier may change only once it has seen an answer
    before = zip(subject.answered, subject.reference_verdicts, strict=False)
    earlier = {(id(task), text): verdict for (task, text), verdict in before}
    for (task, text), verdict, again, here in zip(
        attempts, first, second, elsewhere[::-1], strict=True
    ):
        _require_same(task, text, verdict, again, "then")
        _require_same(task, text, verdict, here, "from an environment without a past")
        _require_same(task, text, earlier.get((id(task), text), verdict), verdict, "then")
    if subject.env.rung() == "verify_batch":
        await _check_company(subject, attempts, first)
    if not subject.services and not subject.has_agents:
        await _check_pasts(subject, attempts[:_AFTER_A_PAST], first)
    return f"{len(attempts)} attempts got the same verdict twice, in another order"


async def _check_pasts(
    subject: Subject, attempts: Sequence[Attempt], verdicts: Sequence[Verdict]
) -> None:
    """Check that attempts get their verdicts also after many replies of one kind.

    What a verifier counts or averages over its past moves far only if the past is one-sided. Where
    verdicts are slow, there is no time for a past.
    """
    if subject.effort.seconds > _SLOW_VERDICT * subject.effort.verdicts:
        return
    pasts = [("silent replies", "", _PAST), ("long replies", _LONG_REPLY, _PAST)]
    if subject.answered:  # at first, while there are few other replies, and fewer than the next
        pasts.insert(0, ("right answers to one task", subject.answered[0][1], _PAST // 2))
    for kind, text, most in pasts:
        task = subject.answered[0][0] if subject.answered else subject.tasks[0]
        started, count = time.monotonic(), 0
        while count < most and time.monotonic() - started < _PAST_SECONDS:
            await subject.judged(subject.inline_verifier, [(task, text)] * _PAST_AT_ONCE)
            count += _PAST_AT_ONCE
        after = await subject.judged(subject.inline_verifier, attempts)
        for (task_then, text_then), verdict, again in zip(attempts, verdicts, after, strict=False):
            _require_same(task_then, text_then, verdict, again, f"after {count} {kind}")


async def _verdicts_here(subject: Subject, attempts: Sequence[Attempt]) -> list[Verdict]:
    """Return the verdicts of the environment in this process, which judges little else."""
    tasks = list({id(task): task for task, _ in attempts}.values())
    kept = [_copied(task.data) for task in tasks]
    verdicts = await subject.judged(subject.inline_verifier, attempts)
    for data, task in zip(kept, tasks, strict=True):
        if data is not None and are_equal(data, task.data) is False:
            raise BrokenPromiseError(
                f"judging changed the data of {task_label(task)} from {shorten(data)} to "
                f"{shorten(task.data)}; all attempts at a task share them"
            )
    return verdicts


def _copied(data: object) -> object:
    """Return a copy of a task's data, or None if it cannot be copied."""
    try:
        return copy.deepcopy(data)
    except Exception:  # noqa: BLE001 - copying runs code of the environment; see task.pickle
        return None


async def _check_company(
    subject: Subject, attempts: Sequence[Attempt], alone: Sequence[Verdict]
) -> None:
    """Check that attempts get the verdicts that they got alone when they are one group."""
    for task in subject.tasks[: subject.small_count]:
        own = [
            (text, verdict)
            for (attempted, text), verdict in zip(attempts, alone, strict=True)
            if attempted is task
        ]
        rollouts = [await subject.rollout(task, text) for text, _ in own]
        (together,) = await subject.verifier.verify([task], [rollouts])
        for (text, verdict), again in zip(own, together, strict=True):
            _require_same(task, text, verdict, again, "in a group with others")


def _require_same(task: Task[Any], text: str, first: Verdict, second: Verdict, when: str) -> None:
    """Raise BrokenPromiseError if two verdicts on an attempt differ."""
    if comparable_fields(first) == comparable_fields(second):
        return
    same_outcome = (first.rewards, first.passed) == (second.rewards, second.passed)
    answers = f", taken as {first.answer!r} and {second.answer!r}" if same_outcome else ""
    raise BrokenPromiseError(
        f"the answer {shorten(text)} at {task_label(task)} first {describe_verdict(first)} and "
        f"{when} {describe_verdict(second)}{answers}; fix the verifier, or set "
        "deterministic = False"
    )


def comparable_fields(verdict: Verdict) -> tuple[object, ...]:
    """Return the fields that must be equal in repeated verdicts."""
    return verdict.rewards, verdict.passed, verdict.answer, verdict.error
