"""Whether tasks change with the level: their length, their numbers and their answers at both ends, compared by ranks."""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Mapping, Sequence
from typing import Any

from grpo_core.kit.result import BrokenPromiseError, NotCheckedError
from grpo_core.kit.subject import QUICK_SECONDS, Subject, prompt_text
from grpo_core.protocol.types import Task, TaskKey
from grpo_core.verify.checks import size_of

_TASKS = 40
_FEWEST = 12
"""With fewer, even ends that do not overlap could be chance."""
_CLEARLY = 4.0
"""Standard deviations of the rank sum beyond which chance is no explanation: 1 in 16,000, for each of a few features."""


async def rising(subject: Subject) -> str:
    env = subject.env
    if not env.levels:
        raise NotCheckedError("the environment says that it has no levels")
    if not subject.tasks:
        raise NotCheckedError("there are no tasks in the train split")
    size = size_of(env, "train")
    if size is not None and size < _FEWEST:
        raise NotCheckedError(
            f"there are {size} tasks, fewer than the {_FEWEST} from which levels can be told apart"
        )
    count = _TASKS if size is None else min(_TASKS, size)
    quick = subject.reference_seconds < QUICK_SECONDS and not subject.reference_error
    ends = []
    for level in (0.0, 1.0):
        tasks = [
            await subject.make(TaskKey(subject.name, "train", index, subject.seed, level))
            for index in range(count)
        ]
        references = (
            [await subject.verifier.reference(task) for task in tasks] if quick else [None] * count
        )
        ends.append(
            [_features(task, reference) for task, reference in zip(tasks, references, strict=True)]
        )
    shifts = {
        name: _shift([one[name] for one in ends[0]], [one[name] for one in ends[1]])
        for name in ends[0][0]
    }
    grown = [name for name, shift in shifts.items() if shift > _CLEARLY]
    shrunk = [name for name, shift in shifts.items() if shift < -_CLEARLY]
    if not grown and not shrunk:
        raise BrokenPromiseError(
            f"{count} tasks of level 0 and of level 1 cannot be told apart by {', '.join(shifts)}; "
            "make them harder with key.level, or set levels = False"
        )
    if not grown:
        raise BrokenPromiseError(
            f"at level 1 tasks have fewer or smaller {', '.join(shrunk)}, and more of nothing: 0 is the easiest, 1 the hardest"
        )
    return f"from level 0 to 1 these grow: {', '.join(grown)}"


def _features(task: Task[Any], reference: str | None) -> Mapping[str, float]:
    prompt, answer = prompt_text(task), reference or ""
    numbers = [min(float(number), 1e300) for number in re.findall(r"\d{1,300}", prompt)]
    lines = prompt.splitlines()
    return {
        "characters of the prompt": len(prompt),
        "words of the prompt": len(set(prompt.split())),
        "numbers of the prompt": len(numbers),
        "sum of its numbers": math.fsum(numbers),
        "longest line of the prompt": max(map(len, lines), default=0),
        "characters of the answer": len(answer),
        "different characters of the answer": len(set(answer)),
        "value of the answer": max(
            (min(float(number), 1e300) for number in re.findall(r"\d{1,300}", answer)), default=0.0
        ),
        "size of the data": _size(task.data),
    }


def _size(data: object) -> float:
    try:
        return float(len(pickle.dumps(data)))
    except Exception:  # noqa: BLE001 - pickling runs code of the environment; task.pickle tells of it
        return 0.0


def _shift(low: Sequence[float], high: Sequence[float]) -> float:
    """The rank sum of `high` above its expectation, in standard deviations (Mann and Whitney, with the correction for ties)."""
    n, m = len(low), len(high)
    ordered = sorted([*low, *high])
    ranks: dict[float, float] = {}
    ties = 0.0
    start = 0
    while start < len(ordered):
        end = start
        while end < len(ordered) and ordered[end] == ordered[start]:
            end += 1
        ranks[ordered[start]] = (start + 1 + end) / 2
        ties += (end - start) ** 3 - (end - start)
        start = end
    total = n + m
    variance = n * m / 12 * (total + 1 - ties / (total * (total - 1)))
    above = math.fsum(ranks[value] for value in high) - m * (total + 1) / 2
    return above / math.sqrt(variance) if variance > 0 else 0.0
