"""Check that tasks change with the level.

Features of the tasks (such as length, numbers and answers) at both ends are compared by ranks.
"""

from __future__ import annotations

import math
import pickle
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from grpo_core.kit.result import BrokenPromiseError, NotCheckedError
from grpo_core.kit.scripts import join_turns
from grpo_core.kit.subject import QUICK_SECONDS, Subject
from grpo_core.protocol.types import Task, TaskKey
from grpo_core.report.floors import prompt_text
from grpo_core.verify.checks import size_of

_TASKS = 40
"""Tasks of each level."""
_MIN_TASKS = 12
"""With fewer tasks, even levels whose features do not overlap could differ by chance."""
_CLEAR_SHIFT = 4.0
"""Standard deviations of the rank sum beyond which a feature differs between the levels.

By chance, that happens once in 16,000 cases, for each of a few features.
"""


async def check_level(subject: Subject) -> str:
    """Check that some feature of the tasks grows from level 0 to level 1."""
    env = subject.env
    if not env.levels:
        raise NotCheckedError("the environment declares levels = False")
    size = size_of(env, "train")
    if size is not None and size < _MIN_TASKS:
        raise NotCheckedError(
            f"there are {size} tasks, fewer than the {_MIN_TASKS} from which levels can be told "
            "apart"
        )
    count = _TASKS if size is None else min(_TASKS, size)
    quick = subject.reference_seconds < QUICK_SECONDS and not subject.reference_error
    features_by_level = []
    for level in (0.0, 1.0):
        tasks = [
            await subject.make_task(TaskKey(subject.name, "train", index, subject.seed, level))
            for index in range(count)
        ]
        references = (
            [join_turns(await subject.verifier.reference(task)) for task in tasks]
            if quick
            else [None] * count
        )
        features_by_level.append(
            [_features(task, reference) for task, reference in zip(tasks, references, strict=True)]
        )
    easy_tasks, hard_tasks = features_by_level
    shifts = {
        name: _shift(
            [features[name] for features in easy_tasks],
            [features[name] for features in hard_tasks],
        )
        for name in easy_tasks[0]
    }
    grown = [name for name, shift in shifts.items() if shift > _CLEAR_SHIFT]
    shrunk = [name for name, shift in shifts.items() if shift < -_CLEAR_SHIFT]
    if not grown and not shrunk:
        raise BrokenPromiseError(
            f"{count} tasks of level 0 and of level 1 cannot be told apart by {', '.join(shifts)}; "
            "make them harder with key.level, or set levels = False"
        )
    if not grown:
        raise BrokenPromiseError(
            f"at level 1 tasks have fewer or smaller {', '.join(shrunk)}, and nothing grows; make "
            "level 0 the easiest and level 1 the hardest"
        )
    return f"from level 0 to 1 these grow: {', '.join(grown)}"


def _features(task: Task[Any], reference: str | None) -> Mapping[str, float]:
    """Return the features of a task by their name in messages."""
    prompt, answer = prompt_text(task), reference or ""
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
        "size of the data": _pickled_size(task.data),
    }


def _pickled_size(data: object) -> float:
    """Return the size of pickled data, or 0 where it cannot be pickled."""
    try:
        return float(len(pickle.dumps(data)))
    except Exception:  # noqa: BLE001 - pickling runs code of the environment; task.pickle reports it
        return 0.0


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
