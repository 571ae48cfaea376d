"""Check that tasks change with the level.

Tasks of several levels are made from the same random numbers, so that every difference comes from
the level. Where an environment has random numbers of its own, features of the tasks (such as
length, numbers and answers) at both ends are compared by ranks.
"""

from __future__ import annotations

import math
import pickle
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from random import Random
from typing import Any

from grpo_core import Task, TaskKey
from grpo_core.api.verify import check_task, size_of
from grpo_core.words import prompt_text
from grpo_kit.check import check
from grpo_kit.dialogues.scripts import join_turns
from grpo_kit.result import BrokenPromiseError, NotCheckedError
from grpo_kit.subject import QUICK_SECONDS, Subject
from grpo_kit.tasks.sample import in_time
from grpo_kit.tasks.tasks import are_equal

_TASKS = 40
"""Tasks of each level."""
_MIN_TASKS = 12
"""With fewer tasks, even levels whose features do not overlap could differ by chance."""
_CLEAR_SHIFT = 4.0
"""Standard deviations of the rank sum beyond which a feature differs between the levels.

By chance, that happens once in 16,000 cases, for each of a few features.
"""
_SECONDS = 0.7
"""No further task of one level is made after this time."""
_NEARLY_0 = 1e-9
"""A level at which tasks are those of level 0, if their random numbers are."""
_NEARLY_1 = 0.97
"""A level at which tasks are to be harder than those of level 0."""
_LABEL_WORDS = 2
"""So many words that change with the level, in the same way in every prompt, are a label."""
_LOWER = (0.0, 0.125, 0.25, 0.375, 0.5)
"""Levels of the lower half; one that has at least `_GRADUAL` kinds of tasks there rises in steps
that are finer than easy and hard."""
_GRADUAL = 3
_ABOVE = (0.5, 0.625, 0.75)
"""Levels from the middle on; if tasks change from each to the next, and not below, the level begins
to count in the middle. What grows with a power of the level seldom changes so soon."""


_Made = tuple[Task[Any], object]
"""A task with its reference, or None."""


class _SameDraws(TaskKey):
    """A key whose random numbers are those of level 0."""

    __slots__ = ()

    def rng(self, *salt: str | int) -> Random:
        """Return the generator of the same key at level 0."""
        return TaskKey(self.env, self.split, self.index, self.seed).rng(*salt)


@check("task.level", "fault", asks="Do tasks change with the level, from easier to harder?")
async def check_level(subject: Subject) -> str:
    """Check that tasks change from level 0 to level 1, also in the upper half."""
    env = subject.env
    if not env.levels:
        raise NotCheckedError("the environment declares levels = False")
    size = size_of(env, "train")
    if size is not None and size < _MIN_TASKS:
        raise NotCheckedError(
            f"there are {size} tasks, fewer than the {_MIN_TASKS} from which levels can be told "
            "apart"
        )
    easy = await _made(subject, 0.0, _SameDraws, least=_MIN_TASKS)
    hard = await _made(subject, 1.0, _SameDraws, least=_MIN_TASKS)
    if not easy or not hard:
        raise NotCheckedError("tasks cannot be made from the random numbers of another level")
    if _are_same(easy, hard):
        raise BrokenPromiseError(
            f"{min(len(easy), len(hard))} tasks of level 0 and of level 1 are the same in prompt, "
            "data and reference; make them harder with key.level, or set levels = False"
        )
    _check_more_than_a_label(easy, hard)
    coupled = _are_same(easy, await _made(subject, _NEARLY_0, _SameDraws))
    if coupled:
        await _check_halves(subject, hard)
        if _are_same(easy, await _made(subject, _NEARLY_1, _SameDraws)):
            raise BrokenPromiseError(
                f"tasks of level {_NEARLY_1:g} are those of level 0, and only those of level 1 "
                "differ: the level is cut to a whole number; let tasks grow with key.level"
            )
    changed = sum(not _is_same(a, b) for a, b in zip(easy, hard, strict=False))
    shifts = await _shifts(subject)
    grown = [name for name, shift in shifts.items() if shift > _CLEAR_SHIFT]
    shrunk = [name for name, shift in shifts.items() if shift < -_CLEAR_SHIFT]
    if not grown and not shrunk and not coupled:
        raise BrokenPromiseError(
            f"tasks of level 0 and of level 1 cannot be told apart by {', '.join(shifts)}; "
            "make them harder with key.level and draw from key.rng(), or set levels = False"
        )
    smaller = {name.rpartition(" ")[2] for name in shrunk}
    if not grown and {"prompt", "answer"} <= smaller:
        raise BrokenPromiseError(
            f"at level 1 tasks have fewer or smaller {', '.join(shrunk)}, and nothing grows; make "
            "level 0 the easiest and level 1 the hardest"
        )
    if grown:
        return f"from level 0 to 1 these grow: {', '.join(grown)}"
    seen = f"these shrink: {', '.join(shrunk)}" if shrunk else "no size or number shows how"
    return (
        f"{changed} of {min(len(easy), len(hard))} tasks are other ones at level 1 than at level "
        f"0, with the same random numbers; {seen}"
    )


def _check_more_than_a_label(easy: Sequence[_Made], hard: Sequence[_Made]) -> None:
    """Raise BrokenPromiseError if only the same few words of all prompts change with the level."""
    pairs = list(zip(easy, hard, strict=False))
    if any(low[1] is None or low[1] != high[1] for low, high in pairs):
        return
    changes = {_changed_words(low[0], high[0]) for low, high in pairs}
    ((removed, added), *others) = changes
    if not others and 0 < len(removed) == len(added) <= _LABEL_WORDS:
        raise BrokenPromiseError(
            f"from level 0 to level 1 only {' '.join(removed)!r} becomes {' '.join(added)!r} in "
            f"each of {len(pairs)} prompts, and the answers stay the same; make the tasks harder, "
            "or set levels = False"
        )


def _changed_words(first: Task[Any], second: Task[Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the words that only the first, and that only the second prompt has."""
    words, others = Counter(prompt_text(first).split()), Counter(prompt_text(second).split())
    return tuple(sorted((words - others).elements())), tuple(sorted((others - words).elements()))


async def _check_halves(subject: Subject, hard: Sequence[_Made]) -> None:
    """Check that tasks that change in one half of the levels change in the other one, too."""
    lower = [await _made(subject, level, _SameDraws) for level in _LOWER]
    kinds = 1 + sum(not _are_same(a, b) for a, b in pairwise(lower))
    if kinds >= _GRADUAL and _are_same(lower[-1], hard):
        raise BrokenPromiseError(
            f"{min(len(hard), len(lower[-1]))} tasks of level 0.5 and of level 1 are the same in "
            "prompt, data and reference, while those of the lower half differ; let key.level "
            "count up to 1"
        )
    if kinds > 1:
        return
    above = [await _made(subject, level, _SameDraws) for level in _ABOVE]
    if not any(_are_same(a, b) for a, b in pairwise(above)):
        raise BrokenPromiseError(
            f"{len(lower[0])} tasks of level 0 and of level 0.5 are the same in prompt, data and "
            "reference, while those of the upper half differ; let key.level count from 0 on"
        )


def _are_same(first: Sequence[_Made], second: Sequence[_Made]) -> bool:
    """Return whether two levels have the same tasks, as far as both were made."""
    return all(_is_same(a, b) for a, b in zip(first, second, strict=False))


def _is_same(first: _Made, second: _Made) -> bool:
    """Return whether prompt, reference and, where it can be compared, data are equal."""
    return (
        first[0].prompt == second[0].prompt
        and first[1] == second[1]
        and are_equal(first[0].data, second[0].data) is not False
    )


async def _made(
    subject: Subject, level: float, kind: type[TaskKey], *, least: int = 0
) -> list[_Made]:
    """Return the first training tasks of a level with their references, where these are quick.

    Args:
        subject: The environment.
        level: The level.
        kind: The class of the keys.
        least: So many tasks are made, however slow they are.
    """
    env, size = subject.env, size_of(subject.env, "train")
    quick = subject.reference_seconds < QUICK_SECONDS and not subject.reference_error
    keys = [
        kind(subject.name, "train", index, subject.seed, level)
        for index in range(_TASKS if size is None else min(_TASKS, size))
    ]

    def make(key: TaskKey) -> _Made:
        task = check_task(env.task(key), key)
        return task, join_turns(env.reference(task)) if quick else None

    results, _ = await in_time(make, keys, seconds=_SECONDS, limit=env.timeout_seconds, least=least)
    return [pair for _, pair in results]


def _pickled(data: object) -> bytes:
    """Return pickled data, or b"" where it cannot be pickled."""
    try:
        return pickle.dumps(data)
    except Exception:  # noqa: BLE001 - pickling runs code of the environment; see task.pickle
        return b""


async def _shifts(subject: Subject) -> dict[str, float]:
    """Return by how much each feature of the tasks is larger at level 1 than at level 0."""
    easy, hard = [
        [
            _features(task, reference)
            for task, reference in await _made(subject, level, TaskKey, least=_MIN_TASKS)
        ]
        for level in (0.0, 1.0)
    ]
    return {
        name: _shift([features[name] for features in easy], [features[name] for features in hard])
        for name in (easy or hard)[0]
    }


def _features(task: Task[Any], reference: object) -> Mapping[str, float]:
    """Return the features of a task by their name in messages."""
    prompt, answer = prompt_text(task), reference if isinstance(reference, str) else ""
    numbers = [min(float(number), 1e300) for number in re.findall(r"\d{1,300}", prompt)]
    return {
        "characters of the prompt": len(prompt),
        "words of the prompt": len(set(prompt.split())),
        "numbers of the prompt": len(numbers),
        "sum of its numbers": math.fsum(numbers),
        "longest line of the prompt": max(map(len, prompt.splitlines()), default=0),
        "characters of the answer": len(answer),
        "different characters of the answer": len(set(answer)),
        "value of the answer": max(
            (min(float(number), 1e300) for number in re.findall(r"\d{1,300}", answer)), default=0.0
        ),
        "size of the data": float(len(_pickled(task.data))),
        "least number of the data": min(_numbers(task.data), default=0.0),
    }


def _numbers(data: object) -> Iterator[float]:
    """Yield the size of each number in plain data, among which may be how near is near enough."""
    if isinstance(data, int | float) and not isinstance(data, bool):
        yield min(abs(data), 1e300)
    elif isinstance(data, Mapping):
        for value in data.values():
            yield from _numbers(value)
    elif isinstance(data, list | tuple):
        for value in data:
            yield from _numbers(value)


def _shift(low: Sequence[float], high: Sequence[float]) -> float:
    """Return the rank sum of `high` above its expectation, in standard deviations.

    It is the statistic of Mann and Whitney, with the correction for ties.
    """
    n, m = len(low), len(high)
    ordered = sorted([*low, *high])
    ranks = [(bisect_left(ordered, value) + 1 + bisect_right(ordered, value)) / 2 for value in high]
    ties = sum(count**3 - count for count in Counter(ordered).values())
    total = n + m
    variance = n * m / 12 * (total + 1 - ties / (total * (total - 1)))
    above = math.fsum(ranks) - m * (total + 1) / 2
    return above / math.sqrt(variance) if variance > 0 else 0.0
