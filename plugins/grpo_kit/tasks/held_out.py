"""Check that held-out tasks are not trained on, whatever the case, spacing and order of words."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from grpo_core import Task, TaskKey
from grpo_core.api.protocol import Split
from grpo_core.api.verify import size_of
from grpo_core.words import normalized_prompt, prompt_text, shorten
from grpo_kit.check import check
from grpo_kit.result import BrokenPromiseError, NotCheckedError
from grpo_kit.subject import Subject
from grpo_kit.tasks.sample import in_time, prompt_length

_PARAPHRASED = 0.1
"""The share of held-out questions that are training questions in other words: no chance."""
_PARAPHRASED_WIDE = 0.25
"""The same share among hundreds of training questions, with which chance is more often met."""
_TURNED_ROUND = 0.5
"""The share of held-out questions that are training questions in another order: where numbers are
small, a tenth of them are by chance."""
_TWIN_SECONDS = 0.5
"""No further training task is made for a held-out one after this time."""
_RUN_TASKS, _RUN_HELD_OUT = 1200, 200
"""Training tasks of one level, as many as 150 steps of the default size make, and held-out tasks of
that level that are looked for among them."""
_RUN_SECONDS = 1.0
"""No further of these training tasks is made, and no reference asked for, after this time."""
_LEAST_QUESTIONS = 20
"""With fewer different prompts the other checks have compared all of them."""
_BY_CHANCE = 0.01
"""The share of these held-out prompts that may be among them by chance."""
_TEMPLATE = 0.25
"""A word of a larger share of the questions belongs to their template."""
_WORDING, _WORDS_OF_ONE = 0.05, 2
"""The least share of the questions that have a wording, and the least number of its words."""
_ONE_QUESTION = 0.85
"""The least share of the same answers by which two wordings are known to be of one question."""
_TELLING = 0.8
"""The least share of training questions that their sorted words must tell apart."""
_TELLING_WIDE = 0.5
"""The same among hundreds, which hold more of the same questions in other wordings."""
_STOP_WORDS = frozenset(
    """
    a an the of to in on at for from by with and or is are was were be do does did what which who
    how please can could would you will that this these those it its there me my i give find
    compute calculate determine tell say so then
    """.split()  # noqa: SIM905 - sixty quoted words would be harder to read
)


@check(
    "task.split",
    "fault",
    asks=(
        "Are held-out prompts, whatever their case, spacing and order of words, not among the"
        " training prompts?"
    ),
)
async def check_splits(subject: Subject) -> str:
    """Check that no held-out prompt is a training prompt, whatever its case, spacing and words."""
    if not subject.eval_tasks:
        raise NotCheckedError("there are no tasks in the eval split")
    train: dict[str, list[Task[Any]]] = {}
    for task in [*subject.tasks, *await subject.rows("train")]:
        train.setdefault(normalized_prompt(task), []).append(task)
    if len(train) == 1 < len(subject.tasks):
        raise NotCheckedError(
            "all prompts are alike: what tells tasks apart is hidden from the policy"
        )
    held_out = {
        normalized_prompt(task): task for task in [*subject.eval_tasks, *await subject.rows("eval")]
    }
    in_both = [task for question, task in held_out.items() if question in train]
    shared = [
        task
        for task in in_both
        if await answer_was_trained(subject, task, train[normalized_prompt(task)])
    ]
    if shared:
        raise BrokenPromiseError(
            f"{len(shared)} held-out prompts are training prompts, too, such as "
            f"{shorten(prompt_text(shared[0]))}; held-out scores mean nothing"
        )
    of_run = await _check_as_in_run(subject)
    await _check_paraphrases(subject, train, held_out)
    others = f" ({len(in_both)} are the same, with other answers)" if in_both else ""
    return (
        f"{len(train)} train and {len(held_out)} eval prompts share none, whatever their case, "
        f"spacing and order of words{others}{of_run}"
    )


async def _check_paraphrases(
    subject: Subject, train: Mapping[str, list[Task[Any]]], held_out: Mapping[str, Task[Any]]
) -> None:
    """Check that few held-out prompts are training prompts in another order of words.

    Training tasks at the places of the held-out ones are compared, too: they may be their models.

    Raises:
        BrokenPromiseError: So many are that it cannot be chance.
    """
    size = size_of(subject.env, "train")
    twins, _ = await in_time(
        subject.env.task,
        [
            replace(task.key, split="train")
            for task in held_out.values()
            if size is None or task.key.index < size
        ],
        seconds=_TWIN_SECONDS,
        limit=subject.env.timeout_seconds,
        length=prompt_length,
    )
    trained = {question: tasks[0] for question, tasks in train.items()}
    trained |= {normalized_prompt(twin): twin for _, twin in twins}
    common = _common_words(list(trained)) | _common_words(list(held_out))
    wordings = _words_of_wordings([*(normalized_prompt(t) for t in subject.wide.tasks), *held_out])
    wide = trained | {normalized_prompt(task): task for task in subject.wide.tasks}
    for how, form, least, telling, questions, ignored in (
        ("in other words", _sorted_words, _PARAPHRASED, _TELLING, trained, common),
        ("in another order", _sorted_items, _TURNED_ROUND, _TELLING, trained, common),
        ("in another wording", _content, _PARAPHRASED_WIDE, _TELLING_WIDE, wide, common | wordings),
    ):
        reworded = dict[object, list[Task[Any]]]()
        for question, task in questions.items():
            reworded.setdefault(form(question, ignored), []).append(task)
        if len(reworded) < telling * len(questions):
            continue  # the order of the words is what tells these questions apart
        shared, pairs = list[tuple[Task[Any], Task[Any]]](), 0
        for question, task in [] if subject.reference_error else held_out.items():
            alike = reworded.get(form(question, ignored), [])
            if form is _content:
                wording = wordings.intersection(_words(question))
                words = ((other, _words(normalized_prompt(other))) for other in alike)
                alike = [other for other, its in words if wordings.intersection(its) != wording][:1]
            if not alike or question in questions or await subject.verifier.reference(task) is None:
                continue
            pairs += 1
            if await answer_was_trained(subject, task, alike):
                shared.append((task, alike[0]))
        if form is _content and len(shared) < _ONE_QUESTION * pairs:
            continue  # they ask for different things, whose answers are the same by chance
        if len(shared) >= max(3, least * len(held_out)):
            task, alike_task = shared[0]
            raise BrokenPromiseError(
                f"{len(shared)} of {len(held_out)} held-out prompts are training prompts {how}, "
                f"such as {shorten(prompt_text(task))} and {shorten(prompt_text(alike_task))}; "
                "held-out scores mean little"
            )


async def _check_as_in_run(subject: Subject) -> str:
    """Check that few held-out prompts are among as many training prompts as a run has.

    The few tasks of the other checks hardly ever meet, even where a run trains on every eighth
    held-out task. These are tasks of the easiest level, of which there are the fewest. A finite
    list is compared as a whole already.

    Returns:
        What was compared, for the message.

    Raises:
        BrokenPromiseError: So many are that the splits are not told apart by content.
    """
    if size_of(subject.env, "train") is not None or not subject.tasks:
        return ""
    train = await _questions(subject, "train", _RUN_TASKS)
    held_out = await _questions(subject, "eval", _RUN_HELD_OUT)
    if len(train) < _LEAST_QUESTIONS:
        return ""
    common = _common_words(list(train)) | _common_words(list(held_out))
    reordered = dict[object, list[Task[Any]]]()
    for question, tasks in train.items():
        reordered.setdefault(_sorted_items(question, common), []).extend(tasks)
    shared, turned, asked, started = list[Task[Any]](), 0, 0, time.monotonic()
    for question, (task, *_) in held_out.items():
        if time.monotonic() - started > _RUN_SECONDS:
            break
        asked += 1
        if question in train:
            if await answer_was_trained(subject, task, train[question]):
                shared.append(task)
        elif alike := reordered.get(_sorted_items(question, common)):
            turned += await answer_was_trained(subject, task, alike)
    counted = (
        f"{len(shared)} of {asked} held-out prompts are among {sum(map(len, train.values())):,} "
        f"training prompts of level 0, and {turned} with their words in another order"
    )
    if len(shared) > max(1, _BY_CHANCE * asked):
        raise BrokenPromiseError(
            f"{counted}, such as {shorten(prompt_text(shared[0]))}; held-out scores mean little: "
            'draw in task() until `held_out(prompt) == (key.split == "eval")`'
        )
    return f"; {counted}"


async def _questions(subject: Subject, split: Split, count: int) -> Mapping[str, list[Task[Any]]]:
    """Return tasks of level 0 by their prompts, as many of `count` as there is time for."""
    made, _ = await in_time(
        lambda key: (normalized_prompt(task := subject.env.task(key)), task),
        [TaskKey(subject.name, split, index, subject.seed) for index in range(count)],
        seconds=_RUN_SECONDS,
        limit=subject.env.timeout_seconds,
        length=lambda made: len(made[0]),
    )
    questions = dict[str, list[Task[Any]]]()
    for _, (question, task) in made:
        questions.setdefault(question, []).append(task)
    return questions


def _common_words(questions: Sequence[str]) -> frozenset[str]:
    """Return stop words, and words of so many questions that they are those of a template."""
    counts = Counter(word for question in questions for word in set(_words(question)))
    frequent = {word for word, count in counts.items() if count > _TEMPLATE * len(questions)}
    return _STOP_WORDS | {word for word in frequent if not word.isdigit()}


def _words_of_wordings(questions: Sequence[str]) -> frozenset[str]:
    """Return words that come in the same questions as several others: those of one wording."""
    places: dict[str, list[int]] = {}
    for place, question in enumerate(questions):
        for word in set(_words(question)):
            places.setdefault(word, []).append(place)
    together: dict[tuple[int, ...], list[str]] = {}
    for word, found in places.items():
        if len(found) >= _WORDING * len(questions) and not word[0].isdigit():
            together.setdefault(tuple(found), []).append(word)
    return frozenset(
        word for words in together.values() if len(words) >= _WORDS_OF_ONE for word in words
    )


def _content(question: str, ignored: frozenset[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the numbers of a question and its other words, each sorted, without the ignored."""
    numbers, words = _sorted_words(question, ignored)
    return tuple(sorted(numbers)), words


def _words(question: str) -> list[str]:
    return re.findall(r"\w+", question)


def _sorted_words(question: str, common: frozenset[str]) -> tuple[tuple[str, ...], ...]:
    """Return what other wordings of a question have in common.

    These are its numbers in their order, and its other words, sorted and without common ones.
    """
    words = [word for word in _words(question) if word not in common]
    numbers = tuple(word for word in words if word[0].isdigit())
    return numbers, tuple(sorted(word for word in words if not word[0].isdigit()))


def _sorted_items(question: str, common: frozenset[str]) -> tuple[str, ...]:
    """Return all words and numbers of a question without common ones, in no order of their own."""
    return tuple(sorted(word for word in _words(question) if word not in common))


async def answer_was_trained(
    subject: Subject, held_out: Task[Any], trained: Sequence[Task[Any]]
) -> bool:
    """Return whether one of the training tasks with the same prompt has the answer of `held_out`.

    The same prompt may have different answers: a gap in a text may stand for different words.
    """
    if subject.reference_error:
        return True
    answers = [await subject.verifier.reference(task) for task in (held_out, *trained)]
    return answers[0] is None or answers[0] in answers[1:]
