"""Check that no answer is right, or passes, so often that it is worth giving without reading."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product
from random import Random
from typing import Any

from grpo_core import GrpoError, Task, Verdict
from grpo_core.api.figures import Floor, constant_answers
from grpo_core.figures.statistics import wilson_interval
from grpo_core.words import shorten
from grpo_core.words.hostile_texts import CONSTANTS
from grpo_kit.answers.floors import MOST_TASKS, require_best_answer
from grpo_kit.answers.forms import are_cut
from grpo_kit.check import check
from grpo_kit.dialogues.players import quoted_in
from grpo_kit.dialogues.scripts import join_turns, split_turns
from grpo_kit.result import BrokenPromiseError, NotCheckedError
from grpo_kit.subject import MIN_TASKS_FOR_SHARE, Attempt, Subject, task_keys

_MOST_COMMON = 0.55
"""The share of tasks with the same answer at which the data are unbalanced."""
_NEARLY_ALL = 0.95
"""The share of tasks with the same answer at which there is nothing to learn."""
_ELSEWHERE = 0.2
"""The share of other tasks that a right answer of some may pass."""
_MANY_TASKS = 120
"""Tasks over which a share is taken, where they are made quickly."""
_SECONDS = 0.6
"""How long more tasks are made, and constants tried on them."""
_MOST_FORMED, _FORMED_SECONDS = 160, 0.1
"""Answers in the form of references that are tried on a few tasks, and how long."""
_AT_ONCE = 40
"""Of these, so many are judged at once."""
_MOST_RETRIED = 2
"""Constants that are tried on many tasks, the best on few first."""


@check("floor.balance", "warning", asks="Is no single answer right in most tasks?")
async def check_balance(subject: Subject) -> str:
    """Check that no answer is the right one of most tasks."""
    require_best_answer(subject)
    attempts = await _many_answered(subject)
    count = len(attempts)
    if count < MIN_TASKS_FOR_SHARE:
        raise NotCheckedError("fewer than 4 references are known; write reference()")
    verdicts = [Verdict()] * count if subject.services else await subject.verdicts(attempts)
    texts = [split_turns(text)[-1] for _, text in attempts]
    extracted = [verdict.answer for verdict in verdicts]
    if are_cut(extracted, texts):
        extracted = [None] * count
    if any(len(split_turns(text)) > 1 for _, text in attempts):  # what all turns say is the answer
        texts, extracted = [text for _, text in attempts], [None] * count
    answers = Counter(
        answer or subject.answers.without_form(text)
        for text, answer in zip(texts, extracted, strict=True)
    )
    ((commonest, times),) = answers.most_common(1)
    summary = f"{shorten(commonest)} is the right answer of {times} of {count} tasks"
    if times >= _MOST_COMMON * count and _is_most(times, count):
        raise BrokenPromiseError(
            f"{summary}: whoever always gives it is right in {times / count:.0%} of the tasks; "
            "balance the tasks, or compare every score with that share"
        )
    return summary


@check("floor.constant", "fault", asks="Does no single answer pass most tasks?")
async def check_constant(subject: Subject) -> str:
    """Check that no constant answer passes most tasks, unless the data alone are unbalanced.

    A constant fails the check if it passes most of the tasks with another reference, if it clearly
    passes more than half of all tasks and some with another reference, or if it is the reference of
    nearly all tasks.
    """
    require_best_answer(subject)
    if len(subject.tasks) < MIN_TASKS_FOR_SHARE:
        raise NotCheckedError(
            f"there are fewer than {MIN_TASKS_FOR_SHARE} tasks to try a constant answer on"
        )
    common = (
        [reply for text in CONSTANTS for reply in subject.answers.reply_variants(text)[-1:]]
        if not subject.services
        else []
    )
    if not subject.services:
        common += [subject.answers.reply_variants(word)[-1] for word in _quoted_in_all(subject)]
    constants = constant_answers((text for _, text in subject.answered), common)
    if words := (
        subject.answers.form.before + subject.answers.form.after
    ).strip():  # what all answers share
        constants = [*constants, words]
    references = {id(task): text for task, text in subject.answered}
    sample = [(task, references.get(id(task))) for task in subject.sample]
    floors = [await _tried(subject, text, sample) for text in constants]
    if not subject.services and not subject.has_agents:
        floors += [await _tried(subject, text, sample) for text in await _promising(subject)]
    floors.sort(key=lambda floor: -floor.passed)
    if not subject.services:
        many = await _many_answered(subject)
        for floor in floors[:_MOST_RETRIED]:
            if floor.passed and len(many) > len(sample):
                await _tried(subject, floor.answer, many)
    best = floors[0] if floors else Floor("")
    return (
        f"the best of {len(constants)} constant answers passes {best.passed} of "
        f"{len(subject.sample)} tasks" + (f" ({shorten(best.answer)})" if best.passed else "")
    )


def _quoted_in_all(subject: Subject) -> list[str]:
    """Return what all prompts quote: an answer that may be given to any of them."""
    quoted = [quoted_in(task) for task in subject.sample]
    return [word for word in quoted[0] if all(word in others for others in quoted)]


async def _promising(subject: Subject) -> list[str]:
    """Return answers, written as references are, that pass each of a few tasks.

    They are made of the characters that references have at each place, and of 0 and 9: a verifier
    may refuse little of what has the right form.
    """
    bare = [subject.answers.bare_answer(index) for index in range(len(subject.answered))]
    answers = sorted({answer for answer in bare if answer})
    tasks = subject.sample[:MIN_TASKS_FOR_SHARE]
    if len(answers) < MIN_TASKS_FOR_SHARE or len(tasks) < MIN_TASKS_FOR_SHARE:
        return []
    texts = [subject.answers.reply_variants(answer)[-1] for answer in _of_the_same_form(answers)]
    started, passing = time.monotonic(), list[str]()
    for start in range(0, len(texts), _AT_ONCE):
        if time.monotonic() - started > _FORMED_SECONDS:
            break
        passing += await _passing(subject, tasks[0], texts[start : start + _AT_ONCE])
    for task in tasks[1:]:
        passing = await _passing(subject, task, passing[:_AT_ONCE])
    return passing[:_MOST_RETRIED]


async def _passing(subject: Subject, task: Task[Any], texts: Sequence[str]) -> list[str]:
    """Return the answers that pass a task."""
    if not texts:
        return []
    verdicts = await subject.verdicts([(task, text) for text in texts])
    return [text for text, verdict in zip(texts, verdicts, strict=True) if verdict.passed]


def _of_the_same_form(answers: Sequence[str]) -> Iterator[str]:
    """Yield texts that at each place have a character that answers of one length have there."""
    (length, _), *_ = Counter(map(len, answers)).most_common(1)
    columns = [
        sorted({*column, *("09" if any(sign.isdigit() for sign in column) else "")})
        for column in zip(*(answer for answer in answers if len(answer) == length), strict=True)
    ]
    if math.prod(map(len, columns)) <= _MOST_FORMED:
        yield from map("".join, product(*columns))
        return
    yield from ("".join(column[0] for column in columns), "".join(c[-1] for c in columns))
    rng = Random(0)
    for _ in range(_MOST_FORMED):
        yield "".join(rng.choice(column) for column in columns)


async def _tried(
    subject: Subject, text: str, answered: Sequence[tuple[object, str | None]]
) -> Floor:
    """Return the floor of a constant answer; raise BrokenPromiseError if it passes too much.

    Args:
        subject: The environment.
        text: The constant answer.
        answered: Tasks with their references, None where there is none.
    """
    verdicts = await subject.verdicts([(task, text) for task, _ in answered])  # type: ignore[misc]
    floor = Floor.of(text, verdicts)
    others = [
        verdict
        for verdict, (_, reference) in zip(verdicts, answered, strict=True)
        if reference != text
    ]
    elsewhere = Floor.of(text, others)
    summary = f"the constant answer {shorten(text)} passes {floor.passed} of {len(answered)} tasks"
    if (
        (
            elsewhere.tasks >= MIN_TASKS_FOR_SHARE
            and elsewhere.passed >= MOST_TASKS * elsewhere.tasks
        )
        or _is_most(elsewhere.passed, elsewhere.tasks)
        or (
            _is_most(floor.passed, floor.tasks)
            and elsewhere.passed > max(1, _ELSEWHERE * elsewhere.tasks)
        )
    ):
        raise BrokenPromiseError(
            f"{summary}, although it ignores them and is the reference of "
            f"{len(answered) - len(others)}"
        )
    if _is_most(floor.passed, floor.tasks) and floor.passed >= _NEARLY_ALL * floor.tasks:
        raise BrokenPromiseError(
            f"{summary}, since it is the reference of {len(answered) - len(others)}: there is "
            "nothing to learn"
        )
    return floor


def _is_most(count: int, total: int) -> bool:
    """Return whether `count` of `total` is clearly more than half."""
    return total > 0 and wilson_interval(count / total, total, confidence=0.99)[0] > 0.5


async def _many_answered(subject: Subject) -> Sequence[Attempt]:
    """Return tasks with their references: as many as are made quickly, at least those at hand."""
    if subject.many_answered is not None:
        return subject.many_answered
    answered, started = list(subject.answered), time.monotonic()
    keys = task_keys(subject.env, subject.name, "train", _MANY_TASKS, subject.seed)
    for key in keys[len(subject.tasks) :]:
        if not answered or time.monotonic() - started > _SECONDS:
            break
        try:
            task = await subject.make_task(key)
            text = join_turns(await subject.verifier.reference(task))
        except GrpoError:
            break  # task.made and verdict.reference tell about that
        if text is not None:
            answered.append((task, text))
    subject.many_answered = answered
    return answered
