"""Checks that tasks are different, that each has one answer, and that the answer fits."""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from grpo_core import Task
from grpo_core.api.verify import size_of
from grpo_core.words import prompt_text, shorten
from grpo_kit.check import check
from grpo_kit.dialogues.scripts import split_turns
from grpo_kit.result import BrokenPromiseError, NotCheckedError
from grpo_kit.subject import Attempt, Subject, task_label
from grpo_kit.tasks.sample import WIDE_COUNT, in_time

_MAX_COMPARED = 400
"""Tasks with a prompt of another task whose references are compared."""
_REFERENCE_SECONDS = 0.5
"""No further reference is computed after this time."""
_MAX_JUDGED = 6
"""Pairs of tasks in which the answer of one is judged at the other."""
_AMBIGUOUS_SHARE = 0.02
"""The share of ambiguous tasks that a list of real texts may hold."""
_OF_REPEATED = 0.1
"""The share of the tasks with a repeated prompt that may be ambiguous in a stream."""
_LEAST_AMBIGUOUS = 3
"""Fewer ambiguous tasks of a stream may be chance."""
_MOST_FURTHER, _FURTHER_SECONDS = 4000, 0.2
"""The most further tasks of a stream, and the time after which no further one is made."""
_FEW = 32
"""Fewer different tasks are learned by heart."""
_FEW_OF_A_LEVEL = 12
"""The same for one level."""
_FEW_DIALOGUES = 8
"""The same for dialogues, in which every turn is another problem."""
_ENOUGH = 64
"""With fewer tasks at hand, few of them are no sign of anything."""
_REPEATED_SHARE = 0.45
"""The least share of a list's rows that must differ."""
_CHARACTERS_PER_TOKEN = 7
"""Letters of a long word in one token, at most: an estimate that is rather too low."""
_DIGITS_PER_TOKEN = 3


@check("task.ambiguous", "fault", asks="Do tasks with the same prompt have the same answer?")
async def check_ambiguous(subject: Subject) -> str:
    """Check that tasks with the same prompt have the same answer."""
    env = subject.env
    if env.max_turns > 1:
        raise NotCheckedError("what tells tasks apart may come in a later turn of the dialogue")
    if env.open_ended:
        raise NotCheckedError("the environment declares open_ended = True")
    if "judge" in env.needs:
        raise NotCheckedError("a judge may accept several answers to the same prompt")
    tasks = _distinct_keys(subject, await subject.rows("train"))
    groups = _by_prompt(tasks)
    endless = size_of(env, "train") is None
    if endless and 0 < len(groups) < len(tasks):
        level = next(group[0].key.level for group in groups.values() if len(group) > 1)
        tasks += await _further_tasks(subject, level)
        groups = _by_prompt(tasks)
    repeated = [task for group in groups.values() if len(group) > 1 for task in group]
    if not repeated:
        return f"no two of {len(tasks)} tasks have the same prompt"
    references = await _references(subject, repeated[:_MAX_COMPARED])
    pairs = [
        (first, task)
        for group in groups.values()
        if (first := next((task for task in group if task.key in references), None)) is not None
        for task in group
        if task.key in references and references[task.key] != references[first.key]
    ]
    compared = len(references)
    if not compared:
        raise NotCheckedError(
            f"{len(repeated)} of {len(tasks)} tasks have the prompt of another one, but "
            "reference() gives no answers to compare"
        )
    attempts = [(task, references[first.key]) for first, task in pairs[:_MAX_JUDGED]]
    verdicts = await subject.verdicts(attempts) if attempts else []
    refused = [
        (pair, answer)
        for pair, (_, answer), verdict in zip(pairs, attempts, verdicts, strict=False)
        if verdict.scored and not verdict.passed
    ]
    enough = _AMBIGUOUS_SHARE * len(tasks)
    if endless:
        enough = min(enough, max(_LEAST_AMBIGUOUS, _OF_REPEATED * compared))
    if refused and len(pairs) >= enough:
        (first, task), answer = refused[0]
        raise BrokenPromiseError(
            f"{len(pairs)} of {compared} tasks with the prompt of another one have another answer: "
            f"to {shorten(prompt_text(task))} {shorten(answer)} is right in {task_label(first)} "
            f"and wrong in {task_label(task)}; put what decides the answer into the prompt"
        )
    rare = f", {len(pairs)} of them with another reference" if pairs else ""
    return f"{len(repeated)} of {len(tasks)} tasks have the prompt of another one{rare}"


def _by_prompt(tasks: Iterable[Task[Any]]) -> dict[str, list[Task[Any]]]:
    """Return tasks by their prompt, whatever its white space."""
    groups: dict[str, list[Task[Any]]] = {}
    for task in tasks:
        groups.setdefault(" ".join(prompt_text(task).split()), []).append(task)
    return groups


async def _further_tasks(subject: Subject, level: float) -> list[Task[Any]]:
    """Return more tasks of a stream and a level, in which the same prompt comes more often."""
    first = subject.tasks[0].key
    made, _ = await in_time(
        subject.env.task,
        [replace(first, index=WIDE_COUNT + n, level=level) for n in range(_MOST_FURTHER)],
        seconds=_FURTHER_SECONDS,
        limit=subject.env.timeout_seconds,
    )
    return [task for _, task in made]


def _distinct_keys(subject: Subject, rows: Iterable[Task[Any]]) -> list[Task[Any]]:
    """Return all training tasks at hand, each place of the stream or list once."""
    levels = subject.env.levels
    return list(
        {
            (task.key.index, task.key.level if levels else 0.0): task
            for task in [*subject.tasks, *subject.wide.tasks, *rows]
        }.values()
    )


async def _references(subject: Subject, tasks: Sequence[Task[Any]]) -> Mapping[Any, str]:
    """Return references by the key of their task, where they are quick, and texts of one turn."""
    known = {task.key: text for task, text in [*subject.answered, *subject.wide.answered]}
    missing = [task for task in tasks if task.key not in known]
    if missing and subject.wide.answered:
        made, _ = await in_time(
            subject.env.reference,
            missing,
            seconds=_REFERENCE_SECONDS,
            limit=subject.env.timeout_seconds,
        )
        known |= {task.key: text for task, text in made if isinstance(text, str)}
    return {task.key: known[task.key] for task in tasks if task.key in known}


@check("task.budget", "warning", asks="Do the references fit into max_new_tokens?")
async def check_budget(subject: Subject) -> str:
    """Check that references fit into a completion, by a low estimate of their tokens."""
    budget = subject.env.max_new_tokens
    answered: Sequence[Attempt] = _with_references(subject)
    if not answered:
        raise NotCheckedError("reference() gives no answers, so their length is not known")
    lengths = [(least_tokens(text), task, text) for task, text in answered]
    long = [item for item in lengths if item[0] > budget]
    if long:
        tokens, task, text = max(long, key=lambda item: item[0])
        raise BrokenPromiseError(
            f"{len(long)} of {len(lengths)} references are longer than max_new_tokens = {budget}, "
            f"such as {shorten(text)} of {task_label(task)} with at least {tokens} tokens, by an "
            "estimate from its letters and digits; raise max_new_tokens"
        )
    longest = max(tokens for tokens, _, _ in lengths)
    return (
        f"the longest of {len(lengths)} references has about {longest} tokens, of "
        f"max_new_tokens = {budget}"
    )


def _with_references(subject: Subject) -> list[Attempt]:
    """Return tasks of both samples, each turn of a scripted dialogue as a reference of its own."""
    turns = [
        (task, turn)
        for task, reference in zip(subject.tasks, subject.references, strict=False)
        if reference is not None
        for turn in split_turns(reference)
    ]
    return [*turns, *subject.wide.answered]


def least_tokens(text: str) -> int:
    """Return how many tokens `text` has at least, as common tokenizers cut it."""
    tokens = 0
    for word in re.findall(r"[A-Za-z]+|\d+|[^\W\d_]+|[^\w\s]+|_+", text):
        if word.isascii() and word.isalpha():
            tokens += math.ceil(len(word) / _CHARACTERS_PER_TOKEN)
        else:  # digits, punctuation, and letters of other alphabets
            tokens += math.ceil(len(word) / _DIGITS_PER_TOKEN)
    return tokens


@check(
    "task.variety", "warning", asks="Are there many different tasks, and as many as size() says?"
)
async def check_variety(subject: Subject) -> str:
    """Check that there are many different tasks, and as many as size() says."""
    size = size_of(subject.env, "train")
    rows = await subject.rows("train")
    tasks = _distinct_keys(subject, rows)
    references = await _references(subject, tasks)
    first = _first_number(tasks)
    different = len({_content(task, references.get(task.key), first) for task in tasks})
    few = _FEW_DIALOGUES if subject.env.max_turns > 1 else _FEW
    if different < few and len(tasks) >= min(_ENOUGH, size or _ENOUGH):
        raise BrokenPromiseError(
            f"among {len(tasks)} tasks there are only {different} different ones; a policy learns "
            "so few by heart, so draw from more"
        )
    for level in sorted({task.key.level for task in subject.wide.tasks}):
        own = [task for task in subject.wide.tasks if task.key.level == level]
        kinds = len({_content(task, references.get(task.key), first) for task in own})
        if len(own) >= _ENOUGH and kinds < _FEW_OF_A_LEVEL and subject.env.max_turns == 1:
            raise BrokenPromiseError(
                f"at level {level:g} there are only {kinds} different tasks among {len(own)}; a "
                "policy learns so few by heart, so draw from more"
            )
    listed = rows or tasks
    distinct = len({_content(task, references.get(task.key), first) for task in listed})
    if size is not None and distinct < _REPEATED_SHARE * len(listed):
        raise BrokenPromiseError(
            f"size('train') is {size}, but the {len(listed)} rows that were read are only "
            f"{distinct} different ones; return the number of different rows"
        )
    return f"among {len(tasks)} tasks there are {different} different ones"


def _first_number(tasks: Sequence[Task[Any]]) -> int | None:
    """Return the number that prompts give the first task, 0 or 1; None if they are not numbered."""
    for first in (0, 1):
        numbered = [task for task in tasks if _number(task, first).search(prompt_text(task))]
        if len(numbered) == len(tasks):
            return first
    return None


def _number(task: Task[Any], first: int) -> re.Pattern[str]:
    return re.compile(rf"(?<!\d){task.key.index + first}(?!\d)")


def _content(task: Task[Any], reference: str | None, first: int | None) -> tuple[str, object]:
    """Return what makes a task different from others: its prompt and its answer, or its data.

    The running number of a task does not count.
    """
    prompt = prompt_text(task)
    if first is not None:
        prompt = _number(task, first).sub("", prompt, count=1)
    if reference is not None:
        return prompt, reference
    try:
        return prompt, pickle.dumps(task.data)
    except Exception:  # noqa: BLE001 - pickling runs code of the environment; see task.pickle
        return prompt, None
