"""Checks of tasks: a task must be a function of its key, and keys must name different tasks."""

from __future__ import annotations

import inspect
import pickle
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from grpo_core import Environment, Task, TaskKey
from grpo_core.api.calls import within
from grpo_core.api.protocol import Split
from grpo_core.api.verify import size_of
from grpo_kit.check import check
from grpo_kit.result import BrokenPromiseError, NotCheckedError
from grpo_kit.subject import Subject, task_label
from grpo_kit.tasks.sample import in_time

_PURE_SECONDS, _ANEW_SECONDS = 0.25, 0.1
"""No further task of the wide sample is made again, nor by a new environment, after this time."""


@check("task.made", "fault", asks="Can tasks of both splits be made, and do they have a prompt?")
async def check_made(subject: Subject) -> str:
    """Check that no task of the wide sample fails; `prepare` has raised if one of the few does."""
    wide = subject.wide
    if wide.failures:
        raise BrokenPromiseError(
            f"{len(wide.failures)} of {len(wide.tasks) + len(wide.failures)} further train tasks "
            f"cannot be made: {wide.failures[0]}"
        )
    ends: tuple[tuple[Split, Sequence[Task[Any]]], ...] = (
        ("train", subject.tasks),
        ("eval", subject.eval_tasks),
    )
    for split, tasks in ends:
        size = size_of(subject.env, split)
        if size and tasks and tasks[-1].key.index < size - 1:
            await subject.make_task(TaskKey(subject.name, split, size - 1, subject.seed))
    train = len({task.key for task in [*subject.tasks, *wide.tasks]})
    return f"{train} train and {len(subject.eval_tasks)} eval tasks have a prompt"


@check(
    "task.pure",
    "fault",
    asks=(
        "Is a task a function of its key alone, independent of order and of the global generators?"
    ),
)
async def check_pure(subject: Subject) -> str:
    """Check that a key gives the same task again, in another order and with other global seeds."""
    comparable = True
    for number, task in enumerate(reversed(subject.tasks)):  # another order than the first time
        with _global_generators(number):
            again = await subject.make_task(task.key)
        same = are_equal(again.data, task.data)
        if again.prompt != task.prompt or same is False:
            raise BrokenPromiseError(
                f"task() gave two different tasks for {task.key}; take all randomness from "
                "key.rng()"
            )
        comparable = comparable and same is not None
    if not comparable:
        raise NotCheckedError(
            "the prompts agree, but the data can be neither compared nor pickled; keep it plain"
        )
    repeated, _ = await in_time(
        lambda task: _is_same_again(subject.env, task),
        subject.wide.tasks[::-1],
        seconds=_PURE_SECONDS,
        limit=subject.env.timeout_seconds,
    )
    different = [task for task, same in repeated if not same]
    if different:
        raise BrokenPromiseError(
            f"task() gave another task for {len(different)} of {len(repeated)} further keys, such "
            f"as {different[0].key}; take all randomness from key.rng()"
        )
    fresh = await _made_by_another(subject)
    other = next((task for task, same in fresh if not same), None)
    if other is not None:
        raise BrokenPromiseError(
            f"task() gave another task for {other.key} in a new environment of the class, which "
            "was asked for tasks in another order; let a task depend on nothing but its key and "
            "the config"
        )
    new = f"; {len(fresh)} also in a new environment" if fresh else ""
    return (
        f"{len(subject.tasks) + len(repeated)} keys gave the same task twice, in another order and "
        f"with other global generators{new}"
    )


async def _made_by_another(subject: Subject) -> list[tuple[Task[Any], bool]]:
    """Return tasks, the last ones first, with whether a new environment makes them as they are.

    There are none where the environment cannot be built from its config and services alone, or may
    have been given more than these.
    """
    env = subject.env
    if len(inspect.signature(type(env)).parameters) > 2:
        return []
    built, _ = await in_time(
        lambda kind: kind(env.config, env.services),
        [type(env)],
        seconds=_PURE_SECONDS,
        limit=env.timeout_seconds,
    )
    if not built:
        return []
    another = built[0][1]
    made, _ = await in_time(
        lambda task: _is_same_again(another, task),
        [*subject.tasks, *subject.wide.tasks][::-1],
        seconds=_ANEW_SECONDS,
        limit=env.timeout_seconds,
    )
    with suppress(Exception):  # what is asked here is the tasks
        await within(another.close(), env.timeout_seconds)
    return made


def _is_same_again(env: Environment[Any], task: Task[Any]) -> bool:
    """Return whether `env` makes the task again, with other global generators."""
    with _global_generators(task.key.index):
        again = env.task(task.key)
    return again.prompt == task.prompt and are_equal(again.data, task.data) is not False


@check(
    "task.random", "fault", asks="Does making a task leave the global random generators unchanged?"
)
async def check_global_generators(subject: Subject) -> str:
    """Check that task() leaves the global random generators unchanged.

    Seeding them in task() would make every random draw elsewhere depend on the last task.
    """
    for task in subject.tasks[: subject.small_count]:
        with _global_generators(0) as states:
            before = [state() for state in states]
            await subject.make_task(task.key)
            if [state() for state in states] != before:
                raise BrokenPromiseError(
                    f"task() draws from or seeds a global random generator ({task_label(task)}); "
                    "take a generator of its own from key.rng()"
                )
    return "the global random generators stay as they were"


@check("task.pickle", "fault", asks="Can tasks be sent to another process?")
async def check_pickle(subject: Subject) -> str:
    """Check that tasks can be pickled, so that they can be sent to another process."""
    for task in subject.tasks:
        try:
            same = pickle.loads(pickle.dumps(task)).prompt == task.prompt
        except Exception as error:
            raise BrokenPromiseError(
                f"the task of {task.key} cannot be pickled: {error}; keep only plain data in it"
            ) from error
        if not same:
            raise BrokenPromiseError(
                f"the task of {task.key} comes back from pickle with another prompt"
            )
    return f"{len(subject.tasks)} tasks survive pickling"


@contextmanager
def _global_generators(seed: int) -> Iterator[list[Callable[[], Any]]]:
    """Seed the global generators of Python and, where it is loaded, NumPy during the block.

    Yields functions that read the states of the generators, which are restored afterwards.
    """
    states: list[Callable[[], Any]] = [random.getstate]
    numpy: Any = sys.modules.get("numpy.random")
    with ExitStack() as restoring:
        restoring.callback(random.setstate, random.getstate())
        random.seed(seed)
        if numpy is not None:
            restoring.callback(numpy.set_state, numpy.get_state())
            numpy.seed(seed)
            states.append(lambda: pickle.dumps(numpy.get_state()))
        yield states


def are_equal(first: object, second: object) -> bool | None:
    """Return whether two values are equal, by comparison or pickled; None if neither works."""
    try:
        return bool(first == second) or pickle.dumps(first) == pickle.dumps(second)
    except Exception:  # noqa: BLE001 - comparing and pickling run code of the environment
        return None
