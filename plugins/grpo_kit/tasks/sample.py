"""A wide sample of training tasks: hundreds where they are cheap, for faults that are rare.

Most checks look closely at a few tasks. What goes wrong in one task of fifty is found only among
many, and most environments make a thousand tasks in a moment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from grpo_core import Environment, Task, TaskKey
from grpo_core.api.calls import DeadlineError, describe, in_thread, within
from grpo_core.api.protocol import Split
from grpo_core.api.verify import BrokenContractError, check_task, size_of
from grpo_core.words import prompt_text

WIDE_COUNT = 480
"""The most tasks of the sample."""
_TASK_SECONDS = 0.5
"""No further task is made after this time."""
_REFERENCE_SECONDS = 0.4
"""No further reference is computed after this time."""
_LEVELS = (0.0, 1.0, 0.5, 0.25, 0.75)
"""The levels of the tasks, in turn."""

_MAX_ROWS = 10_000
"""Tasks of a finite list that are compared."""
_ROW_SECONDS = 1.0
"""No further row is made after this time."""
_MOST_FAILURES = 5
"""After so many failures no further task is made."""

MOST_CHARACTERS = 4_000_000
"""No further task is made once the prompts have as many, or every check would take minutes."""
LEAST_TASKS = 4
"""So many tasks are made whatever their size."""

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Sample:
    """Training tasks of all levels; of a finite list, rows from its beginning to its end."""

    tasks: Sequence[Task[Any]] = ()
    answered: Sequence[tuple[Task[Any], str]] = ()
    """Tasks that have a reference of one turn, with it; as many as there was time for."""
    failures: Sequence[str] = ()
    """Why tasks could not be made."""


def wide_keys(env: Environment[Any], name: str, seed: int) -> list[TaskKey]:
    """Return the keys of the sample, at most `WIDE_COUNT`."""
    size = size_of(env, "train")
    count = WIDE_COUNT if size is None else min(WIDE_COUNT, size)
    last = count - 1 if size is None else size - 1
    indices = [round(number * last / max(1, count - 1)) for number in range(count)]
    return [
        TaskKey(name, "train", index, seed, _LEVELS[number % len(_LEVELS)])
        for number, index in enumerate(indices)
    ]


async def make_sample(
    env: Environment[Any], name: str, seed: int, *, with_references: bool
) -> Sample:
    """Make the sample in this process, in a limited time.

    Args:
        env: The environment.
        name: Its name in task keys.
        seed: The seed of the tasks.
        with_references: Whether references are quick, and can be computed at all.
    """
    made, failures = await in_time(
        lambda key: check_task(env.task(key), key),
        wide_keys(env, name, seed),
        seconds=_TASK_SECONDS,
        limit=env.timeout_seconds,
        length=prompt_length,
    )
    tasks = [task for _, task in made]
    answered = list[tuple[Task[Any], Any]]()
    if with_references:
        answered, _ = await in_time(
            env.reference, tasks, seconds=_REFERENCE_SECONDS, limit=env.timeout_seconds
        )
    return Sample(tasks, [pair for pair in answered if isinstance(pair[1], str)], failures)


async def make_rows(
    env: Environment[Any], name: str, seed: int, split: Split
) -> Sequence[Task[Any]]:
    """Return the first tasks of a finite list, in a limited time; none of an endless stream.

    Where a list leaks, it is often a few rows of many, so a sample is not enough.
    """
    size = size_of(env, split)
    if size is None or size_of(env, "train") is None:
        return ()
    made, _ = await in_time(
        lambda key: check_task(env.task(key), key),
        [TaskKey(name, split, index, seed) for index in range(min(size, _MAX_ROWS))],
        seconds=_ROW_SECONDS,
        limit=env.timeout_seconds,
        length=prompt_length,
    )
    return [task for _, task in made]


def prompt_length(task: Task[Any]) -> int:
    """Return the number of characters of a task's prompt."""
    return len(prompt_text(task))


async def in_time(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    *,
    seconds: float,
    limit: float,
    least: int = 0,
    length: Callable[[Result], int] = lambda result: 0,
) -> tuple[list[tuple[Item, Result]], list[str]]:
    """Return the first items with their results, and why some have none.

    Args:
        function: It is called in one thread, with one item after another.
        items: Its arguments.
        seconds: No further call is made after this time.
        limit: The most seconds for one call.
        least: So many calls are made in any case.
        length: Returns the characters of a result, of which there may be `MOST_CHARACTERS`.
    """
    results, failures = list[tuple[Item, Result]](), list[str]()

    def work() -> None:
        started, characters = time.monotonic(), 0
        for item in items:
            late = time.monotonic() - started > seconds and len(results) >= least
            full = characters >= MOST_CHARACTERS and len(results) >= LEAST_TASKS
            if late or full or len(failures) == _MOST_FAILURES:
                return
            try:
                results.append((item, function(item)))
                characters += length(results[-1][1])
            except BrokenContractError as error:
                failures.append(str(error))
            except Exception as error:  # noqa: BLE001 - environments raise what they like
                failures.append(f"{describe(error)} at {item}")

    try:
        await within(in_thread(work), seconds + limit * max(1, least))
    except DeadlineError:  # the thread may go on, and adds to lists that nobody reads any longer
        late = f"more than {limit:g} s passed at {items[len(results) + len(failures)]}"
        return results[:], [*failures, late]
    return results, failures
