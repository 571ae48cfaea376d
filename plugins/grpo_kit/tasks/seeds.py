"""Checks that seeds and indices name different tasks, and that none of them is held out."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

from grpo_core import Task, TaskKey
from grpo_core.api.protocol import Split
from grpo_core.api.verify import size_of
from grpo_core.words import normalized_prompt, prompt_text, shorten
from grpo_kit.check import check
from grpo_kit.result import BrokenPromiseError, NotCheckedError
from grpo_kit.subject import Subject
from grpo_kit.tasks.held_out import answer_was_trained
from grpo_kit.tasks.sample import in_time

_NEIGHBOURS = 12
"""Neighbouring tasks that are compared."""
_OFFSETS = (
    *(digit * 10**zeros for zeros in range(10) for digit in (1, 2, 3, 4, 5, 6, 8)),
    *(2**power for power in (*range(7, 21), 24, 30, 31, 32)),
)
"""Offsets that authors add to an index or seed to keep held-out tasks apart."""
_BY_CHANCE = 0.5
"""The share of equal tasks that may be chance."""
_MIN_DIFFERENT = 64
"""With fewer different prompts, held-out ones may be asked far away in the stream by chance."""
_SEEDS = (0, 1, 2, 11)
"""By how much the seeds differ whose tasks are compared; with 1 and 11, digits can run together."""
_INDICES = 40
"""Tasks of each seed."""
_SECONDS = 0.6
"""No further task of the seeds is made after this time."""
_STREAM_SECONDS = 5.0
"""No further place of the training stream is looked at after this time."""
_ROWS = 400
"""Rows of each split of a list that are compared."""
_MOST_SHARED = 5
"""Equal tasks of two seeds beyond what chance gives three times over."""
_MOST_REPEATED = 0.2
"""The share of tasks that may be that of the index before."""
_MIN_KINDS = 4
"""With fewer different tasks, neighbours may be equal by chance."""


@check(
    "task.seed",
    "fault",
    asks=(
        "Do neighbouring seeds and indices give different tasks, and are held-out tasks at no"
        " distant training index?"
    ),
)
async def check_seeds(subject: Subject) -> str:
    """Check that seeds and indices give different tasks, and splits do not overlap.

    With randomness from seed + index, for instance, the tasks of seed 1 are those of seed 0 moved
    by one.
    """
    if size_of(subject.env, "train") is not None:
        return await _check_rows(subject)
    by_seed = await _questions_by_seed(subject)
    _check_indices_differ(by_seed)
    keys = [TaskKey(subject.name, "train", index, subject.seed) for index in range(_NEIGHBOURS)]
    questions = [normalized_prompt(await subject.make_task(key)) for key in keys]
    if len(set(questions)) < 3:
        raise NotCheckedError(
            f"the first {_NEIGHBOURS} tasks ask {len(set(questions))} different things, too few to "
            "compare"
        )
    _check_seeds_differ(by_seed)
    different = len({normalized_prompt(task) for task in subject.wide.tasks})
    if different < min(_MIN_DIFFERENT, len(subject.wide.tasks) // 2):
        return (
            "neighbouring seeds share no tasks; with so few different prompts "
            f"({different} among {len(subject.wide.tasks)}) no place of the stream tells more"
        )
    count = size_of(subject.env, "eval")
    held_out: dict[str, Task[Any]] = {}
    for key in keys:
        if count is None or key.index < count:
            task = await subject.make_task(replace(key, split="eval"))
            held_out.setdefault(normalized_prompt(task), task)
    compared = await _compare_far_places(subject, keys, held_out)
    return (
        f"neighbouring seeds share no tasks, nor do held-out tasks and {compared} places of the "
        "training stream"
    )


async def _compare_far_places(
    subject: Subject, keys: Sequence[TaskKey], held_out: Mapping[str, Task[Any]]
) -> int:
    """Return at how many far places of the training stream no held-out tasks are.

    Args:
        subject: The environment.
        keys: The first training keys.
        held_out: The first held-out tasks, by their prompts.

    Raises:
        BrokenPromiseError: They are at one of these places.
    """
    started, compared = time.monotonic(), 0
    for offset in _OFFSETS:
        if time.monotonic() - started > _STREAM_SECONDS:
            break
        compared += 1
        far_keys = [replace(keys[0], index=offset + index) for index in range(4)]
        if normalized_prompt(await subject.make_task(far_keys[-1])) not in held_out:
            continue
        far = [await subject.make_task(key) for key in far_keys]
        repeated = [task for task in far if normalized_prompt(task) in held_out]
        if len(repeated) < 3:
            continue
        if all(
            [
                await answer_was_trained(subject, held_out[normalized_prompt(task)], [task])
                for task in repeated
            ]
        ):
            raise BrokenPromiseError(
                f"training index {offset} and those after it are held-out tasks, such as "
                f"{shorten(prompt_text(repeated[0]))}; use key.rng()"
            )
    return compared


async def _check_rows(subject: Subject) -> str:
    """Check that another seed does not train on rows that this one holds out."""
    size, held_out_size = size_of(subject.env, "train"), size_of(subject.env, "eval")
    if not size or not held_out_size:
        raise NotCheckedError("the tasks are a finite list without held-out rows")
    sizes: Mapping[Split, int] = {"eval": held_out_size, "train": size}
    keys = [
        TaskKey(subject.name, split, index, seed)
        for seed in (subject.seed, subject.seed + 1)
        for split, count in sizes.items()
        for index in range(min(count, _ROWS))
    ]
    made, _ = await in_time(
        subject.env.task, keys, seconds=_SECONDS, limit=subject.env.timeout_seconds
    )
    rows: dict[tuple[int, str], set[str]] = {}
    for key, task in made:
        rows.setdefault((key.seed, key.split), set()).add(normalized_prompt(task))
    held_out = rows.get((subject.seed, "eval"), set())
    leaked = held_out & rows.get((subject.seed + 1, "train"), set())
    leaked -= rows.get((subject.seed, "train"), set())
    if len(leaked) > _MOST_SHARED:
        raise BrokenPromiseError(
            f"seed {subject.seed + 1} trains on {len(leaked)} of {len(held_out)} rows that seed "
            f"{subject.seed} holds out, such as {shorten(min(leaked))}; split the rows before "
            "anything is shuffled by a seed"
        )
    return f"{len(held_out)} held-out rows are not trained on by another seed"


async def _questions_by_seed(subject: Subject) -> Mapping[int, Sequence[str]]:
    """Return the questions of the first indices of some seeds, at the hardest level."""
    level = 1.0 if subject.env.levels else 0.0
    keys = [
        TaskKey(subject.name, "train", index, subject.seed + step, level)
        for index in range(_INDICES)
        for step in _SEEDS
    ]
    made, _ = await in_time(
        subject.env.task,
        keys,
        seconds=_SECONDS,
        limit=subject.env.timeout_seconds,
        least=_NEIGHBOURS * len(_SEEDS),
    )
    questions: dict[int, list[str]] = {subject.seed + step: [] for step in _SEEDS}
    for key, task in made:
        questions[key.seed].append(normalized_prompt(task))
    return questions


def _check_seeds_differ(by_seed: Mapping[int, Sequence[str]]) -> None:
    """Raise BrokenPromiseError if seeds share more tasks than chance explains."""
    repeats = sum(
        count * (count - 1) // 2
        for questions in by_seed.values()
        for count in Counter(questions).values()
    )
    pairs = sum(len(questions) * (len(questions) - 1) // 2 for questions in by_seed.values())
    for first, second in combinations(by_seed, 2):
        questions, others = by_seed[first], Counter(by_seed[second])
        shared = sum(others[question] for question in questions)
        by_chance = repeats / max(1, pairs) * len(questions) * len(by_seed[second])
        if shared <= 3 * by_chance + _MOST_SHARED:
            continue
        equal = sum(a == b for a, b in zip(questions, by_seed[second], strict=False))
        if equal >= _BY_CHANCE * len(questions):
            raise BrokenPromiseError(
                f"{equal} of {len(questions)} tasks of seed {second} are those of seed {first}: "
                "the seed is not used; draw from key.rng()"
            )
        example = next(question for question in questions if others[question])
        raise BrokenPromiseError(
            f"seed {second} has {shared} tasks of seed {first} at other indices, such as "
            f"{shorten(example)} at {by_seed[second].index(example)} and "
            f"{questions.index(example)}: seed and index run into each other; use key.rng()"
        )


def _check_indices_differ(by_seed: Mapping[int, Sequence[str]]) -> None:
    """Raise BrokenPromiseError if neighbouring indices often have the same task."""
    for seed, questions in by_seed.items():
        if len(set(questions)) < _MIN_KINDS:
            continue
        equal = sum(a == b for a, b in pairwise(questions))
        if equal > _MOST_REPEATED * len(questions) + len(questions) / len(set(questions)):
            raise BrokenPromiseError(
                f"{equal} of {len(questions)} tasks of seed {seed} are that of the index before; "
                "let every index have a task of its own, since the trainer repeats each one "
                "group_size times"
            )
